"""A domain whose answers are Python functions, judged by this build's own method. Tests only: reached by place."""

from __future__ import annotations

from collections.abc import Sequence

from shared.domains.base import Attempt, CheckRequest, Draft, Instance, Judgement, NearMiss, SandboxedDomain
from shared.domains.draw import Draw
from tests.verification.faulty import NoDifficulty

CODING = "tests.services.coding:Coding"


class Coding(SandboxedDomain[NoDifficulty]):
    """ "Write add(x) that adds 17"."""

    name = "coding"
    difficulty_model = NoDifficulty

    def draft(self, draw: Draw, difficulty: NoDifficulty) -> Draft:
        number = draw.integer(0, 9999)
        return Draft(prompt=f"Write add(x) that adds {number}", expected=number)

    def check(self, instance: Instance, attempt: Attempt) -> Judgement | CheckRequest:
        if not attempt.final_answer.strip():
            return Judgement.failed("no program")
        tests = "\n".join(
            f"    assert candidate({x}) == {x + instance.expected}" for x in (0, 1, -5, 10**30, 123)
        )
        request = {
            "candidate": attempt.final_answer,
            "entry_point": "add",
            "test": f"def check(candidate):\n{tests}\n",
        }
        return CheckRequest("python_function_tests", request, {"wall_s": 5.0, "memory_mb": 128})

    def oracle(self, instance: Instance) -> str:
        return f"def add(x):\n    return x + {instance.expected}"

    def do_nothing(self, instance: Instance) -> str:
        return ""

    def near_misses(self, instance: Instance) -> Sequence[NearMiss]:
        return (NearMiss(f"def add(x):\n    return x - {instance.expected}", "failed"),)

    def exploits(self, instance: Instance) -> Sequence[NearMiss]:
        return (
            NearMiss("import os\nos._exit(0)", "failed"),
            NearMiss("class Any:\n    __eq__ = lambda a, b: True\ndef add(x):\n    return Any()", "failed"),
        )
