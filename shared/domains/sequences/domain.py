"""The `sequences` domain: "Sort from small to large: 9, 3, 5. Answer with just the list."

Invariant: every item in its place or no pay; a list with one item wrong is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.domains.base import Attempt, Domain, Draft, Instance, Judgement, NearMiss
from shared.domains.draw import Draw
from shared.domains.sequences.generator import SequencesDifficulty, draw_puzzle
from shared.verification.comparators.lists import IntegerListComparator

_LIST = IntegerListComparator()


class Sequences(Domain[SequencesDifficulty]):
    name = "sequences"
    version = 1
    cell = "text/no tools/one round/integer list"
    difficulty_model = SequencesDifficulty

    def draft(self, draw: Draw, difficulty: SequencesDifficulty) -> Draft:
        puzzle = draw_puzzle(draw, difficulty)
        return Draft(
            prompt=f"{puzzle.instruction}: {_joined(puzzle.items)}. Answer with just the list.",
            expected={"items": puzzle.items, "answer": _joined(puzzle.result)},
        )

    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        return _LIST.judge(instance.expected["answer"], attempt.final_answer)

    def oracle(self, instance: Instance) -> str:
        return str(instance.expected["answer"])

    def do_nothing(self, instance: Instance) -> str:
        """The list as it was given."""
        return _joined(instance.expected["items"])

    def near_misses(self, instance: Instance) -> Sequence[NearMiss]:
        answer = self.oracle(instance)
        items = answer.split(", ")
        swapped = ", ".join([*items[1:], items[0]])
        return (
            NearMiss(f"[{answer}]", "passed", "a list in brackets"),
            NearMiss(f"Answer: {answer}.", "passed", "the declared prefix, a full stop"),
            NearMiss(", ".join(items[:-1]), "failed", "the last item is missing"),
            NearMiss(f"{answer}, {items[-1]}", "failed", "the last item twice"),
            NearMiss(_joined((int(items[0]) + 1, *map(int, items[1:]))), "failed", "one item off by one"),
            NearMiss(swapped, "failed" if len(items) > 1 else "passed", "the first item at the end"),
            NearMiss(f"{answer} or {swapped}", "failed", "two candidates"),
            NearMiss(f"The list is {answer}", "failed", "words around the list"),
        )

    def exploits(self, instance: Instance) -> Sequence[NearMiss]:
        question = instance.messages[-1].content
        return (
            NearMiss("", "failed", "nothing"),
            NearMiss(question, "failed", "the question repeated"),
            NearMiss(", ".join(str(n) for n in range(1000)), "failed", "every number"),
        )


def _joined(items: Sequence[int]) -> str:
    return ", ".join(map(str, items))
