"""One operation on one list.

Invariant: the result differs from the list and is never empty, so neither echoing the question's list nor
answering nothing can be right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import Field, model_validator

from shared.domains.base import Difficulty
from shared.domains.draw import Draw

Operation = Literal["sort", "filter", "dedupe", "reverse"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)


class SequencesDifficulty(Difficulty):
    """`length` integers in [0, max_value], and one operation; `mixed` draws one each time."""

    length: int = Field(default=4, ge=2, le=12)
    operation: Operation | Literal["mixed"] = "sort"
    max_value: int = Field(default=20, ge=1, le=999)

    @model_validator(mode="after")
    def _enough_values(self) -> SequencesDifficulty:
        if self.max_value + 1 < self.length:
            raise ValueError(
                f"max_value {self.max_value} gives {self.max_value + 1} values for a list of {self.length}: "
                "lists hold different numbers, so raise it or shorten the list"
            )
        return self


@dataclass(frozen=True, slots=True)
class Puzzle:
    operation: Operation
    items: tuple[int, ...]
    result: tuple[int, ...]
    instruction: str


def draw_puzzle(draw: Draw, difficulty: SequencesDifficulty) -> Puzzle:
    wanted = difficulty.operation
    return _MAKERS[draw.choice(OPERATIONS) if wanted == "mixed" else wanted](draw, difficulty)


def _different(draw: Draw, difficulty: SequencesDifficulty, count: int) -> list[int]:
    return draw.sample(range(difficulty.max_value + 1), count)


def _sort(draw: Draw, difficulty: SequencesDifficulty) -> Puzzle:
    items = _different(draw, difficulty, difficulty.length)
    if items == sorted(items):
        items.reverse()
    return Puzzle("sort", tuple(items), tuple(sorted(items)), "Sort from small to large")


def _reverse(draw: Draw, difficulty: SequencesDifficulty) -> Puzzle:
    items = _different(draw, difficulty, difficulty.length)
    return Puzzle("reverse", tuple(items), tuple(reversed(items)), "Reverse the order")


def _filter(draw: Draw, difficulty: SequencesDifficulty) -> Puzzle:
    items = _different(draw, difficulty, difficulty.length)
    kept = draw.integer(1, difficulty.length - 1)
    bound = sorted(items)[difficulty.length - kept - 1]
    result = tuple(item for item in items if item > bound)
    return Puzzle("filter", tuple(items), result, f"Keep only the numbers above {bound}")


def _dedupe(draw: Draw, difficulty: SequencesDifficulty) -> Puzzle:
    different = _different(draw, difficulty, draw.integer(difficulty.length // 2, difficulty.length - 1))
    repeats = [draw.choice(different) for _ in range(difficulty.length - len(different))]
    items = draw.shuffled(different + repeats)
    result = tuple(dict.fromkeys(items))
    return Puzzle("dedupe", tuple(items), result, "Keep only the first of each number")


_MAKERS: dict[Operation, Callable[[Draw, SequencesDifficulty], Puzzle]] = {
    "sort": _sort,
    "filter": _filter,
    "dedupe": _dedupe,
    "reverse": _reverse,
}
