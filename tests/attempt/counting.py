"""A domain whose answer is in a file that only a tool can read."""

from __future__ import annotations

from collections.abc import Sequence

from shared.domains.agent import AgentProgram
from shared.domains.base import Attempt, Difficulty, Domain, Draft, Instance, Judgement, NearMiss
from shared.domains.draw import Draw


class Easy(Difficulty):
    most: int = 500


class Counting(Domain[Easy]):
    name = "counting"
    cell = "text/sandbox/many rounds/exact"
    difficulty_model = Easy

    def draft(self, draw: Draw, difficulty: Easy) -> Draft:
        lines = draw.integer(1, difficulty.most)
        return Draft(
            "How many lines has a.txt? Submit the number.",
            str(lines),
            identity=str(lines),
            files={"a.txt": "x\n" * lines},
            tools=("bash", "submit"),
        )

    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        good = attempt.final_answer.strip() == instance.expected
        return Judgement("passed" if good else "failed", float(good), "" if good else "another number")

    def oracle(self, instance: Instance) -> str:
        return str(instance.expected)

    def do_nothing(self, instance: Instance) -> str:
        return ""

    def near_misses(self, instance: Instance) -> Sequence[NearMiss]:
        return (NearMiss(str(int(instance.expected) + 1), "failed"),)


SOLVE = """
import json, os, urllib.request
lines = len(open("a.txt").readlines())
body = {"model": "m", "messages": [{"role": "user", "content": f"There are {lines} lines. How many?"}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
json.load(urllib.request.urlopen(request))
print(lines)
"""


class CountingByAgent(Counting):
    """Its own program counts, and asks the policy once."""

    name = "counting_by_agent"
    agent = AgentProgram(("python3", "solve.py"), {"solve.py": SOLVE}, answer="stdout")
