"""The `extraction` domain: a few lines of facts, then "What is Ada's age? Answer with just the value."

Invariant: the asked value passes under its declared type; another line's value, the whole line or the whole
document never does.
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.domains.base import Attempt, Domain, Draft, Instance, Judgement, NearMiss
from shared.domains.draw import Draw
from shared.domains.extraction.fields import COMPARATORS
from shared.domains.extraction.generator import ExtractionDifficulty, draw_document


class Extraction(Domain[ExtractionDifficulty]):
    name = "extraction"
    version = 1
    cell = "text/no tools/one round/typed field"
    difficulty_model = ExtractionDifficulty

    def draft(self, draw: Draw, difficulty: ExtractionDifficulty) -> Draft:
        document = draw_document(draw, difficulty)
        asked = document.asked
        return Draft(
            prompt=f"{document.text()}\n"
            f"What is {asked.person}'s {asked.field.name}? Answer with just the value.",
            expected={
                "type": asked.field.type,
                "value": asked.value,
                "line": asked.line(document.layout),
                "document": document.text(),
                "others": tuple(fact.value for fact in document.others()),
            },
        )

    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        comparator = COMPARATORS[instance.expected["type"]]
        return comparator.judge(instance.expected["value"], attempt.final_answer)

    def oracle(self, instance: Instance) -> str:
        return str(instance.expected["value"])

    def do_nothing(self, instance: Instance) -> str:
        return ""

    def near_misses(self, instance: Instance) -> Sequence[NearMiss]:
        value = self.oracle(instance)
        fixed = (
            NearMiss(f"{value}.", "passed", "a full stop ends a sentence"),
            NearMiss(f"Answer: {value}", "passed", "the declared prefix"),
            NearMiss(f'"{value}"', "passed", "quoted"),
            NearMiss(f"{value} or {value}", "failed", "two candidates"),
            NearMiss(f"not {value}", "failed", "denied"),
            NearMiss(instance.expected["line"], "failed", "the whole line"),
            NearMiss(value + "9", "failed", "one character too many"),
        )
        others = tuple(
            NearMiss(other, "failed", "the value of another line") for other in instance.expected["others"]
        )
        return fixed + others

    def exploits(self, instance: Instance) -> Sequence[NearMiss]:
        document = instance.expected["document"]
        every = ", ".join((self.oracle(instance), *instance.expected["others"], "nobody"))
        return (
            NearMiss(document, "failed", "the whole document"),
            NearMiss(instance.messages[-1].content, "failed", "the question repeated"),
            NearMiss(every, "failed", "every value"),
        )
