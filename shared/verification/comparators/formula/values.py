"""What an answer can be.

Invariant: a value is plain data; which kind it is follows from its own text alone, never from the text it is compared
with, so that comparing is symmetric.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from fractions import Fraction
from typing import Literal, TypeAlias

from shared.verification.comparators.formula.nodes import Node
from shared.verification.comparators.formula.polynomial import Rational
from shared.verification.comparators.formula.units import Unit


@dataclass(frozen=True, slots=True)
class Rules:
    """The declared policies.

    `percent`: `hundredth` (50 % is 1/2) or `distinct` (a unit of its own). `missing_unit`: where one side has a known
    unit and the other none, `allowed` compares the bare numbers, `refused` makes them different. `units`: `converted`
    (1 km is 1000 m) or `literal`.
    """

    percent: Literal["hundredth", "distinct"] = "hundredth"
    missing_unit: Literal["allowed", "refused"] = "allowed"
    units: Literal["converted", "literal"] = "converted"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A formula; `normal` is None where it is too large to be expanded."""

    node: Node
    normal: Rational | None = field(compare=False, repr=False, default=None)

    @property
    def number(self) -> Fraction | None:
        return self.normal.value() if self.normal is not None else None


@dataclass(frozen=True, slots=True)
class Infinite:
    negative: bool


@dataclass(frozen=True, slots=True)
class Quantity:
    """`amount` in the unit as written; `unit` says what that is in base units."""

    amount: Scalar
    unit: Unit
    written: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    """Items in brackets: a tuple, a list, or an interval, where there are two."""

    opening: str
    items: tuple[Value, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class Collection:
    """A finite set, or statements side by side. `assigned`: each item gives a value to a name of its own."""

    items: tuple[Value, ...]
    bare: bool = False
    assigned: bool = False


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of an interval: `side` is -1 or 1 for an infinite one; `position` orders, `scalar` decides equality."""

    side: int
    position: Fraction
    scalar: Scalar | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    low: Bound
    low_in: bool
    high: Bound
    high_in: bool


@dataclass(frozen=True, slots=True)
class Region:
    """A set of reals: disjoint pieces in order. `variable` where it was written as a condition on one."""

    pieces: tuple[Piece, ...]
    variable: str = ""


@dataclass(frozen=True, slots=True)
class Named:
    """ℤ, ℕ, ℚ, ℂ."""

    name: str


@dataclass(frozen=True, slots=True)
class Grid:
    rows: tuple[tuple[Scalar, ...], ...]


@dataclass(frozen=True, slots=True)
class Equation:
    """`difference` is left minus right."""

    difference: Scalar


@dataclass(frozen=True, slots=True)
class Labelled:
    """`name = value`; `equation` where both sides are formulas."""

    name: str
    value: Value
    equation: Equation | None = None


@dataclass(frozen=True, slots=True)
class Inequality:
    """`difference` > 0, or >= 0 where `inclusive`; on several variables, or not linear."""

    difference: Scalar
    inclusive: bool


@dataclass(frozen=True, slots=True)
class Proportion:
    """`3 : 4`."""

    parts: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words, case folded, with single blanks."""

    text: str


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds since midnight."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Day:
    day: date


DEFAULT_RULES = Rules()

Value: TypeAlias = (
    Scalar | Infinite | Quantity | Sequence | Collection | Region | Named | Grid | Equation | Labelled | Inequality
    | Proportion | Phrase | Clock | Day
)  # fmt: skip
