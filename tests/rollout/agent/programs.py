"""Small agent programs, as somebody would bring them: the standard library, OPENAI_BASE_URL and OPENAI_API_KEY."""

from __future__ import annotations

HEAD = """
import json, os, subprocess, sys, urllib.error, urllib.request

def chat(messages, **more):
    body = json.dumps({"model": "gpt-4o", "messages": messages, **more}).encode()
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]
"""
SHELL = (
    HEAD
    + """
TOOL = {"type": "function", "function": {"name": "shell", "description": "Runs a command.", "parameters": {
    "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}
messages = [{"role": "system", "content": "You work in a shell."}, {"role": "user", "content": sys.argv[1]}]
while True:
    message = chat(messages, tools=[TOOL])
    messages.append(message)
    if not message.get("tool_calls"):
        print(message["content"])
        break
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        ran = subprocess.run(command, shell=True, capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": ran.stdout + ran.stderr})
"""
)
"""A loop of a shell and nothing else."""
SILENT = "import sys; print('I need a configuration file', file=sys.stderr); sys.exit(3)"
"""Ends without a word to the policy."""
CONTRADICTING = HEAD + "chat([{'role': 'user', 'content': 'x'}], temperature=0.3)"
"""Asks for what the task does not sample with, and falls over the answer."""
HANGING = HEAD + "chat([{'role': 'user', 'content': 'x'}])\nimport time\ntime.sleep(1000)"
NEVER = "import time\ntime.sleep(1000)"
FLOODING = (
    HEAD
    + """
chat([{'role': 'user', 'content': 'x'}])
while True:
    try:
        chat('garbage')
    except urllib.error.URLError:
        pass
"""
)
"""Garbage, on and on."""
ENDLESS = (
    HEAD
    + """
messages = [{'role': 'user', 'content': 'x'}]
while True:
    messages += [chat(messages), {'role': 'user', 'content': 'go on'}]
"""
)
LATE = (
    HEAD
    + """
chat([{'role': 'user', 'content': 'x'}])
code = "import time, urllib.request, os; time.sleep(1); " \\
    "urllib.request.urlopen(os.environ['OPENAI_BASE_URL'] + '/models')"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
"""
)
"""Leaves a process that would ask after the end."""
CRASHING = (
    HEAD
    + "chat([{'role': 'user', 'content': 'x'}])\nopen('made.txt', 'w').write('half')\nraise SystemExit('oops')"
)
CLIENT = """
import sys
from openai import OpenAI
client = OpenAI()
stream = client.chat.completions.create(
    model="gpt-4o", messages=[{"role": "user", "content": sys.stdin.read()}], stream=True)
print("".join(chunk.choices[0].delta.content or "" for chunk in stream))
print([model.id for model in client.models.list()])
"""
"""With the `openai` package, inside."""
STREAMING = (
    HEAD
    + """
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": sys.stdin.read()}], "stream": True}).encode()
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
text = ""
for line in urllib.request.urlopen(request):
    if line.startswith(b"data: {"):
        text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
print(text)
"""
)
