"""`temper chat`: turns on one context, tools in a sandbox, an answer that is ended by the person."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from services.rollout.chat import ChatCodec
from services.rollout.engines.base import GenerateRequest, Generation, Ids
from services.rollout.formats.calls import Call
from services.rollout.formats.fenced import Fenced
from services.rollout.turns.tokens import Tokens
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from temper.__main__ import app
from temper.attempt.talk import Listener, Manner, NoRoomError, Talk
from tests.rollout.turns import templates
from tests.rollout.turns.scripted import ScriptedEngine, count_of, says, spelled
from tests.sandbox.machines import MODES, settings_of


class SlowEngine(ScriptedEngine):
    """Tells of its tokens, and then takes its time where it is told to."""

    slow = False

    async def generate(self, request: GenerateRequest) -> Generation:
        if not self.slow:
            return await super().generate(request)
        assert request.heard is not None
        for token in self.script(len(self.asked), request)[:3]:
            request.heard(int(token))
        await asyncio.sleep(60)
        raise AssertionError("nobody ended it")


@pytest.fixture
def codec(tiny_folder: Path) -> ChatCodec:
    return ChatCodec.open(str(tiny_folder))


def tokens_of(codec: ChatCodec) -> Tokens:
    return Tokens(codec.tokenizer, codec.stop_ids)


@pytest.mark.parametrize("name", ["tiny", "qwen_like", "strict"])
def test_what_was_sampled_stays_in_the_context(codec: ChatCodec, name: str) -> None:
    codec.tokenizer.chat_template = templates.ALL[name]
    tokens = tokens_of(codec)
    engine = ScriptedEngine(says(tokens, ["one", "two", "three"]))
    talk = Talk(engine, codec, Manner(system="be brief", max_tokens=20))

    async def run() -> list[str]:
        return [(await talk.say(text)).text for text in ("a", "b", "c")]

    assert asyncio.run(run()) == ["one", "two", "three"]
    for before, after in zip(engine.asked, engine.asked[1:], strict=False):
        said = np.concatenate([before.prompt, before.made.token_ids])
        np.testing.assert_array_equal(after.prompt[: len(said)], said)
    whole = tokens.raw(engine.asked[-1].prompt)
    assert whole.count("be brief") == 1


def test_an_answer_that_was_ended_stays_as_far_as_it_came(codec: ChatCodec) -> None:
    tokens = tokens_of(codec)
    engine = SlowEngine(says(tokens, ["abcdef", "fine"]))
    talk = Talk(engine, codec, Manner())

    async def run() -> None:
        engine.slow = True
        heard: list[int] = []
        answer = asyncio.create_task(talk.say("first", Listener(heard.append)))
        while len(heard) < 3:
            await asyncio.sleep(0)
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
        engine.slow = False
        assert (await talk.say("second")).text == "abcdef"
        assert tokens.encode("abc")[0].tolist() == heard
        text = tokens.raw(engine.asked[-1].prompt)
        assert text.index("first") < text.index("abc") < text.index("second")

    asyncio.run(run())


def test_a_full_context_forgets_its_oldest_turns(codec: ChatCodec) -> None:
    tokens = tokens_of(codec)
    engine = ScriptedEngine(says(tokens, ["x" * 30]), longest=200)
    talk = Talk(engine, codec, Manner(system="keep me", max_tokens=40))

    async def run() -> None:
        for number in range(12):
            await talk.say(f"question {number}")
        text = tokens.raw(engine.asked[-1].prompt)
        assert "keep me" in text
        assert "question 11" in text
        assert "question 0" not in text
        assert max(len(asked.prompt) for asked in engine.asked) <= 160

    asyncio.run(run())


@pytest.mark.parametrize("name", ["tiny", "strict"])
@pytest.mark.parametrize("at", [0, 1, 6])
def test_a_message_that_does_not_fit_is_refused_and_the_talk_goes_on(
    codec: ChatCodec, name: str, at: int
) -> None:
    """The policy is asked the very same as in a talk in which nobody said it."""
    codec.tokenizer.chat_template = templates.ALL[name]
    tokens = tokens_of(codec)

    async def run(refused: bool) -> list[Ids]:
        engine = ScriptedEngine(says(tokens, ["x" * 12]), longest=300)
        talk = Talk(engine, codec, Manner(system="keep me", max_tokens=40))
        for number in range(8):
            if refused and number == at:
                with pytest.raises(NoRoomError) as error:
                    await talk.say("y" * 400)
                size, fits = map(int, re.findall(r"\d+", str(error.value)))
                assert size == tokens.count("y" * 400)
                with pytest.raises(NoRoomError, match="and .* fit: say less"):
                    await talk.say("y" * (fits + 1))
            await talk.say(f"question {number}")
        return [asked.prompt for asked in engine.asked]

    for asked, same in zip(asyncio.run(run(True)), asyncio.run(run(False)), strict=True):
        np.testing.assert_array_equal(asked, same)


def test_as_much_as_is_said_to_fit_does(codec: ChatCodec) -> None:
    engine = ScriptedEngine(says(tokens_of(codec), ["x"]), longest=200)
    talk = Talk(engine, codec, Manner(system="keep me", max_tokens=40))

    async def run() -> None:
        with pytest.raises(NoRoomError, match="the message has 400 tokens, and ") as error:
            await talk.say("y" * 400)
        fits = int(re.findall(r"\d+", str(error.value))[1])
        await talk.say("y" * fits)
        assert len(engine.asked[0].prompt) == 160

    asyncio.run(run())


def test_a_system_message_that_leaves_no_room_is_told(codec: ChatCodec) -> None:
    talk = Talk(ScriptedEngine(says(tokens_of(codec), ["x"]), longest=200), codec, Manner(system="s" * 180))
    with pytest.raises(NoRoomError, match="no message fits"):
        asyncio.run(talk.say("a"))


def test_tools_work_in_a_sandbox_of_the_talk(codec: ChatCodec) -> None:
    tokens = tokens_of(codec)
    form = Fenced(
        [
            {
                "function": {
                    "name": "bash",
                    "description": "",
                    "parameters": {"properties": {"command": {"type": "string"}}, "required": ["command"]},
                }
            }
        ]
    )
    turns = [
        form.render([Call("bash", {"command": "echo 41 > n; cat n"})]),
        "It is 41.",
        form.render([Call("bash", {"command": "expr $(cat n) + 1"})]),
        "Now 42.",
    ]
    end = np.array([tokens.end_id], dtype=np.int32)
    table: list[Ids] = [np.concatenate([tokens.encode(turn)[0], end]) for turn in turns]
    engine = ScriptedEngine(lambda number, request: table[number])

    async def run() -> None:
        async with (
            Sandbox(settings_of(MODES[0])) as sandbox,
            await sandbox.session({}, Limits()) as session,
        ):
            talk = Talk(engine, codec, Manner(), session)
            first, second = await talk.say("write"), await talk.say("add one")
            assert (first.text, second.text) == ("It is 41.", "Now 42.")
            assert [call.result for call in (*first.tool_calls, *second.tool_calls)] == ["41", "42"]
            assert "runs a shell command" in tokens.raw(engine.asked[0].prompt).lower()

    asyncio.run(run())


def test_sampled_ids_are_not_made_again(codec: ChatCodec) -> None:
    codec.tokenizer.add_tokens(["hello"])
    tokens = tokens_of(codec)
    odd = np.concatenate([spelled(tokens, "hello"), np.array([tokens.end_id], dtype=np.int32)])
    engine = ScriptedEngine(lambda number, request: odd)
    talk = Talk(engine, codec, Manner())

    async def run() -> None:
        await talk.say("a")
        await talk.say("b")
        assert count_of(engine.asked[1].prompt, odd) == 1

    asyncio.run(run())


def test_piped_each_line_gets_an_answer(tiny_folder: Path) -> None:
    words = ["chat", "--policy", str(tiny_folder), "--max-tokens", "4", "--seed", "3"]
    plain = CliRunner().invoke(app, words, input="one\n\ntwo\n")
    assert plain.exit_code == 0, plain.output
    made = CliRunner().invoke(app, [*words, "--json"], input="one\n\ntwo\n")
    answers = [json.loads(line) for line in made.output.splitlines()]
    assert [answer["tokens"] for answer in answers] == [4, 4]
    assert [answer["stop_reason"] for answer in answers] == ["length", "length"]
    assert [set(answer) for answer in answers] == [{"text", "tokens", "stop_reason", "tool_calls"}] * 2
    assert not made.stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_piped_a_line_that_does_not_fit_has_an_empty_answer(
    tiny_folder: Path, tmp_path: Path, as_json: bool
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        '[run]\nname = "r"\n[model]\npath = "models/none"\n[[stages]]\nkind = "rl"\nsteps = 1\n'
        '[[domains]]\nname = "arithmetic"\n[rollout]\nmax_batch_tokens = 256\n'
    )
    words = ["chat", "--policy", str(tiny_folder), "--max-tokens", "4", "--config", str(config)]
    made = CliRunner().invoke(app, [*words, *(["--json"] if as_json else [])], input=f"{'y' * 900}\ntwo\n")
    assert made.exit_code == 4, made.output
    first, second = made.stdout.splitlines()[:2]
    if as_json:
        assert [json.loads(line)["stop_reason"] for line in (first, second)] == ["refused", "length"]
    else:
        assert not first and second
    assert re.fullmatch(r"temper: the message has 900 tokens, and \d+ fit: say less\n", made.stderr)


@pytest.mark.slow
def test_on_a_terminal_control_d_leaves(tiny_folder: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "temper", "chat", "--policy", str(tiny_folder), "--max-tokens", "3"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "dumb", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        seen = _until(ours, "> ")
        assert "Ctrl-C ends an answer" in seen
        os.write(ours, b"hello\n")
        assert "│ " in _until(ours, "after 3 tokens]\r\n> ")
        os.write(ours, b"\x04")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _until(terminal: int, wanted: str, timeout_s: float = 60.0) -> str:
    seen, ends = "", time.monotonic() + timeout_s
    while wanted not in seen:
        left = ends - time.monotonic()
        assert left > 0, seen
        if select.select([terminal], [], [], left)[0]:
            seen += os.read(terminal, 4096).decode("utf-8", "replace")
    return seen


def test_help_names_the_keys() -> None:
    found: Any = CliRunner().invoke(app, ["chat", "--help"])
    assert "Ctrl-D leaves" in " ".join(found.output.split())
