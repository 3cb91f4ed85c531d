"""Mathematical answers under a declared type, or `answer`, which takes any value for what its own text says it is.

Invariant: both sides are read by the same rules and each alone; whether they are equal follows from the pair of
values. What cannot be decided is not equal, with the reason said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

from shared.errors import VerificationFault
from shared.verification.answers import Refusal, shown
from shared.verification.comparators.base import Comparator, Comparison, unevaluated
from shared.verification.comparators.formula import numeric
from shared.verification.comparators.formula.comparing import Pairing
from shared.verification.comparators.formula.deciding import Decider, Resort
from shared.verification.comparators.formula.evaluated import is_value
from shared.verification.comparators.formula.interpret import Interpreter
from shared.verification.comparators.formula.limits import COMPARE_WORK, MAX_CHARS, READ_WORK, TooMuch, Work
from shared.verification.comparators.formula.nodes import names_of
from shared.verification.comparators.formula.reading import read_value
from shared.verification.comparators.formula.values import (
    DEFAULT_RULES,
    Collection,
    Equation,
    Grid,
    Inequality,
    Labelled,
    Quantity,
    Region,
    Rules,
    Scalar,
    Sequence,
    Value,
)
from shared.verification.judgement import Judgement

_SINGLE = frozenset(("integer", "rational", "decimal", "quantity", "expression"))
_PAIR_PRICE = 8
"""Of putting two values in order, in units of work."""
_UNIT_NEEDED = Rules(missing_unit="refused")


@dataclass(frozen=True, slots=True)
class AnswerComparator(Comparator[Value]):
    """Any value. `resort` has the last word on formulas that exact arithmetic leaves open.

    `value_only`: an answer must be a value and no calculation (`formula/evaluated.py`). It is asked of the answer in
    `judge` alone: an expected value may be written as one likes, and `compare` looks at values.
    """

    kind: ClassVar[str] = "answer"
    max_chars: ClassVar[int] = MAX_CHARS
    rules: Rules = DEFAULT_RULES
    resort: Resort = numeric.identical
    value_only: bool = False
    pool: Work | None = None
    """Shared with other answers, where this is one of many."""

    def within(self, pool: Work) -> AnswerComparator:
        return replace(self, pool=pool)

    def read(self, bare: str) -> Value | Refusal:
        value = read_value(bare, self.rules, Work(READ_WORK, self.pool))
        return value if isinstance(value, Refusal) else self.accepted(value, bare)

    def accepted(self, value: Value, bare: str) -> Value | Refusal:
        """The value as one of this type, or why it is none."""
        return value

    def same(self, left: Value, right: Value) -> bool:
        return self._decided(left, right)[0]

    def undone(self, expected: Value, found: Value) -> bool:
        return self.value_only and not is_value(found, expected, Work(READ_WORK, self.pool))

    def compare(self, left: str, right: str) -> Comparison:
        first, second = self.parse(left), self.parse(right)
        if isinstance(first, Refusal) or isinstance(second, Refusal):
            return Comparator.compare(self, left, right)
        equal, open_ = self._decided(first, second)
        return Comparison(equal, "" if equal else _why(self.kind, open_))

    def judge(self, expected: str, answer: str) -> Judgement:
        wanted = self.parse(expected)
        if isinstance(wanted, Refusal):
            raise VerificationFault(
                f"the expected {self.kind} is unreadable: {wanted.reason}; mend the domain"
            )
        found = self.parse(answer)
        if isinstance(found, Refusal):
            return Judgement.failed(found.reason)
        equal, open_ = self._decided(wanted, found)
        if equal:
            return unevaluated(answer) if self.undone(wanted, found) else Judgement.passed()
        what = "not decided, so not equal" if open_ else f"wrong {self.kind}"
        return Judgement.failed(f"{what}: {shown(answer.strip())}")

    def _decided(self, left: Value, right: Value) -> tuple[bool, bool]:
        """Whether they are equal, and whether that was left open."""
        if (
            type(self).matches is AnswerComparator.matches
            and isinstance(left, Scalar)
            and isinstance(right, Scalar)
        ):
            first, second = left.number, right.number
            if first is not None and second is not None:
                return first == second, False
        decider = Decider(Work(COMPARE_WORK, self.pool), self.resort)
        try:
            decider.work.spend(_PAIR_PRICE)
            equal = self.matches(Pairing(self.rules, decider), left, right)
        except TooMuch:
            return False, True
        return equal, decider.undecided and not equal

    def matches(self, pairing: Pairing, left: Value, right: Value) -> bool:
        return pairing.same(left, right)


def _why(kind: str, open_: bool) -> str:
    return "whether they are equal was not decided" if open_ else f"two different answers of type {kind}"


def _unlabelled(value: Value) -> Value:
    return value.value if isinstance(value, Labelled) else value


def _refused(value: Value, bare: str, kind: str) -> Refusal:
    count = len(value.items) if isinstance(value, Collection) else 1
    if count > 1 and kind in _SINGLE:
        return Refusal(f"{count} candidates in {shown(bare)}: an answer holds one")
    return Refusal(f"{shown(bare)} is not of type {kind}")


@dataclass(frozen=True, slots=True)
class ExactIntegerComparator(AnswerComparator):
    """A closed formula that is an integer: `12`, `12_{10}`; `2^{10}` and `10!` where `value_only` is off."""

    kind: ClassVar[str] = "integer"
    value_only: bool = True

    def accepted(self, value: Value, bare: str) -> Value | Refusal:
        return _number(value, bare, self.kind, lambda number: number.denominator == 1)


@dataclass(frozen=True, slots=True)
class RationalComparator(AnswerComparator):
    """A closed formula that is a fraction: `1/2`, `0.5`, `50\\%`, `3\\frac12`, `0.\\overline{3}`."""

    kind: ClassVar[str] = "rational"
    value_only: bool = True

    def accepted(self, value: Value, bare: str) -> Value | Refusal:
        return _number(value, bare, self.kind, lambda number: True)


def _number(value: Value, bare: str, kind: str, holds: Callable[[Fraction], bool]) -> Value | Refusal:
    inner = _unlabelled(value)
    if not isinstance(inner, Scalar) or names_of(inner.node):
        return _refused(value, bare, kind)
    if inner.number is None and kind == "integer":
        near = _near(inner)
        if near is None or abs(near - round(near)) > Fraction(1, 10**30):
            return _refused(value, bare, kind)
        return inner
    if inner.number is not None and not holds(inner.number):
        return _refused(value, bare, kind)
    return inner


def _near(scalar: Scalar) -> Fraction | None:
    if scalar.number is not None:
        return scalar.number
    try:
        return numeric.approximate(scalar.node, Work(READ_WORK))
    except TooMuch:
        return None


@dataclass(frozen=True, slots=True)
class DecimalComparator(AnswerComparator):
    """A real number, within `absolute`, or within `relative` of the larger magnitude; both 0 is exact."""

    kind: ClassVar[str] = "decimal"
    value_only: bool = True
    absolute: Fraction = Fraction(0)
    relative: Fraction = Fraction(0)

    def accepted(self, value: Value, bare: str) -> Value | Refusal:
        inner = _unlabelled(value)
        if isinstance(inner, Scalar) and not names_of(inner.node) and _near(inner) is not None:
            return inner
        return _refused(value, bare, self.kind)

    def matches(self, pairing: Pairing, left: Value, right: Value) -> bool:
        if not isinstance(left, Scalar) or not isinstance(right, Scalar):
            return False
        first, second = _near(left), _near(right)
        if first is None or second is None or not (self.absolute or self.relative):
            return pairing.same(left, right)
        return abs(first - second) <= max(self.absolute, self.relative * max(abs(first), abs(second)))


@dataclass(frozen=True, slots=True)
class QuantityComparator(AnswerComparator):
    """A number with its unit; a unit that is missing is refused unless the rules allow it."""

    kind: ClassVar[str] = "quantity"
    rules: Rules = _UNIT_NEEDED
    value_only: bool = True

    def accepted(self, value: Value, bare: str) -> Value | Refusal:
        inner = _unlabelled(value)
        if isinstance(inner, Quantity | Scalar):
            return inner
        return _refused(value, bare, self.kind)


@dataclass(frozen=True, slots=True)
class SetComparator(AnswerComparator):
    """`{1, 2}`, or `1, 2` or `1 or 2` without braces; one value is the set of it. Order and repetition do not count."""

    kind: ClassVar[str] = "set"

    def accepted(self, value: Value, bare: str) -> Value | Refusal:
        if isinstance(value, Collection):
            return Collection(value.items)
        if isinstance(value, Sequence) or (isinstance(value, Region) and not value.pieces):
            return Collection(()) if isinstance(value, Region) else _refused(value, bare, self.kind)
        return Collection((_unlabelled(value),))


@dataclass(frozen=True, slots=True)
class MultisetComparator(AnswerComparator):
    """As a set, but repetition counts; `[1, 1, 2]` is read as well."""

    kind: ClassVar[str] = "multiset"

    def accepted(self, value: Value, bare: str) -> Value | Refusal:
        if isinstance(value, Collection):
            return Collection(value.items)
        if isinstance(value, Sequence) and value.opening == "[" and value.closing == "]":
            return Collection(value.items)
        return (
            Collection((_unlabelled(value),))
            if not isinstance(value, Sequence)
            else _refused(value, bare, self.kind)
        )

    def matches(self, pairing: Pairing, left: Value, right: Value) -> bool:
        if not isinstance(left, Collection) or not isinstance(right, Collection):
            return False
        first, second = sorted((left, right), key=repr)
        return pairing.as_bags(first.items, second.items)


@dataclass(frozen=True, slots=True)
class TupleComparator(AnswerComparator):
    """`(1, 2)`, `[1, 2]`, `1, 2`: order and repetition count, brackets do not. Braces are a set, and refused."""

    kind: ClassVar[str] = "tuple"

    def accepted(self, value: Value, bare: str) -> Value | Refusal:
        inner = _unlabelled(value)
        if isinstance(inner, Sequence) and (inner.opening, inner.closing) in (("(", ")"), ("[", "]")):
            return Sequence("(", inner.items, ")")
        if isinstance(inner, Collection) and inner.bare:
            return Sequence("(", inner.items, ")")
        return Sequence("(", (inner,), ")") if isinstance(inner, Scalar) else _refused(value, bare, self.kind)


@dataclass(frozen=True, slots=True)
class IntervalComparator(AnswerComparator):
    """A set of reals: intervals, unions of them, conditions on one variable, ℝ."""

    kind: ClassVar[str] = "interval"

    def accepted(self, value: Value, bare: str) -> Value | Refusal:
        try:
            pieces = Interpreter(self.rules, Work(READ_WORK, self.pool)).region(value)
        except TooMuch as fault:
            return Refusal(f"{shown(bare)} is not readable: {fault}")
        if pieces is None:
            return _refused(value, bare, self.kind)
        return Region(pieces, value.variable if isinstance(value, Region) else "")


@dataclass(frozen=True, slots=True)
class MatrixComparator(AnswerComparator):
    """`\\begin{pmatrix}…`, or a list of lists of one length."""

    kind: ClassVar[str] = "matrix"

    def accepted(self, value: Value, bare: str) -> Value | Refusal:
        inner = _unlabelled(value)
        if isinstance(inner, Grid):
            return inner
        if isinstance(inner, Sequence) and inner.items:
            rows = [row.items for row in inner.items if isinstance(row, Sequence)]
            scalars = [tuple(entry for entry in row if isinstance(entry, Scalar)) for row in rows]
            if len(rows) == len(inner.items) and all(len(row) == len(rows[0]) for row in rows) and (
                [len(row) for row in rows] == [len(row) for row in scalars]
            ):  # fmt: skip
                return Grid(tuple(scalars))
        return _refused(value, bare, self.kind)


@dataclass(frozen=True, slots=True)
class ExpressionComparator(AnswerComparator):
    """A formula, an equation or an inequality, equal as such: `(x+1)^2` and `x^2+2x+1`."""

    kind: ClassVar[str] = "expression"

    def accepted(self, value: Value, bare: str) -> Value | Refusal:
        if isinstance(value, Scalar | Equation | Inequality | Labelled | Region):
            return value
        return _refused(value, bare, self.kind)
