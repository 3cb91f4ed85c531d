"""Expressions over non-negative integers.

Invariant: the value is computed with the usual precedence, exactly; two expressions that differ only in the
order of what commutes are one question.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from pydantic import Field

from shared.domains.base import Difficulty
from shared.domains.draw import Draw

Operation = Literal["+", "-", "*"]


class ArithmeticDifficulty(Difficulty):
    """`terms` numbers of exactly `digits` digits, joined by operations drawn from `operations`."""

    digits: int = Field(default=2, ge=1, le=6)
    operations: tuple[Operation, ...] = Field(default=("+",), min_length=1, max_length=3)
    terms: int = Field(default=2, ge=2, le=4)


@dataclass(frozen=True, slots=True)
class Expression:
    """`numbers` joined by `operations`, which are one fewer."""

    numbers: tuple[int, ...]
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        rest = (f" {op} {number}" for op, number in zip(self.operations, self.numbers[1:], strict=True))
        return str(self.numbers[0]) + "".join(rest)

    def products(self) -> list[tuple[int, list[int]]]:
        """The sum as (sign, factors)."""
        out: list[tuple[int, list[int]]] = [(1, [self.numbers[0]])]
        for operation, number in zip(self.operations, self.numbers[1:], strict=True):
            if operation == "*":
                out[-1][1].append(number)
            else:
                out.append((1 if operation == "+" else -1, [number]))
        return out

    def value(self) -> int:
        return sum(sign * prod(factors) for sign, factors in self.products())

    def identity(self) -> str:
        """Equal for expressions that differ in the order of factors or of summands only."""
        return repr(sorted((sign, sorted(factors)) for sign, factors in self.products()))


def draw_expression(draw: Draw, difficulty: ArithmeticDifficulty) -> Expression:
    low = 0 if difficulty.digits == 1 else 10 ** (difficulty.digits - 1)
    high = 10**difficulty.digits - 1
    return Expression(
        numbers=tuple(draw.integer(low, high) for _ in range(difficulty.terms)),
        operations=tuple(draw.choice(difficulty.operations) for _ in range(difficulty.terms - 1)),
    )
