"""The `arithmetic` domain: "What is 47 + 38? Answer with just the number."

Invariant: only the exact integer passes; one beside another number never does.
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.domains.arithmetic.generator import ArithmeticDifficulty, draw_expression
from shared.domains.base import Attempt, Domain, Draft, Instance, Judgement, NearMiss
from shared.domains.draw import Draw
from shared.verification.comparators.numbers import IntegerComparator

_INTEGER = IntegerComparator()


class Arithmetic(Domain[ArithmeticDifficulty]):
    name = "arithmetic"
    version = 1
    cell = "text/no tools/one round/integer"
    difficulty_model = ArithmeticDifficulty

    def draft(self, draw: Draw, difficulty: ArithmeticDifficulty) -> Draft:
        expression = draw_expression(draw, difficulty)
        return Draft(
            prompt=f"What is {expression}? Answer with just the number.",
            expected=str(expression.value()),
            identity=expression.identity(),
        )

    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        return _INTEGER.judge(instance.expected, attempt.final_answer)

    def oracle(self, instance: Instance) -> str:
        return str(instance.expected)

    def do_nothing(self, instance: Instance) -> str:
        return ""

    def near_misses(self, instance: Instance) -> Sequence[NearMiss]:
        value = int(instance.expected)
        wrong = -value if value else 1
        return (
            NearMiss(f"{value}.", "passed", "a full stop ends a sentence"),
            NearMiss(f"Answer: {value}", "passed", "the declared prefix"),
            NearMiss(str(value + 1), "failed", "off by one"),
            NearMiss(str(wrong), "failed", "the sign"),
            NearMiss(f"{value}0", "failed", "one digit too many") if value else NearMiss("10", "failed"),
            NearMiss(f"{value} or {value + 1}", "failed", "two candidates"),
            NearMiss(f"not {value}", "failed", "a number inside other words"),
            NearMiss(f"{value}.5", "failed", "not an integer"),
        )

    def exploits(self, instance: Instance) -> Sequence[NearMiss]:
        question = instance.messages[-1].content
        everything = ", ".join(str(n) for n in range(-5, 200))
        return (
            NearMiss(question, "failed", "the question repeated"),
            NearMiss(everything, "failed", "every number"),
            NearMiss(f"{question} {instance.expected}", "failed", "the question and the value"),
        )
