"""Whether an answer is a value, or a calculation that somebody else is to carry out.

Invariant: `12` is a value and `5+7` is none, though they are equal. A rational number is a value where it is written as
one: an integer, a decimal, a mixed number, one fraction of two integers that is no integer, a percentage, or a number
times a power of ten, each with its sign. Any other number is a value where no part of it is an undone calculation
with rational numbers: `1+2\\sqrt{3}` is one, `2\\sqrt{4}` and `\\sqrt{5+7}` are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from shared.verification.comparators.formula.limits import TooMuch, Unreadable, Work
from shared.verification.comparators.formula.nodes import (
    MINUS_ONE,
    ONE,
    Constant,
    Name,
    Node,
    Number,
    Power,
    Product,
    Quotient,
    Sum,
    children,
    names_of,
)
from shared.verification.comparators.formula.normal import Normaliser
from shared.verification.comparators.formula.values import (
    Collection,
    Grid,
    Labelled,
    Quantity,
    Region,
    Scalar,
    Sequence,
    Value,
)

_TEN = Number(Fraction(10))
_PERCENT = Constant("percent")


def is_value(found: Value, expected: Value, work: Work) -> bool:
    """Whether nothing is left to do in `found`. Where all numbers of `expected` are rational, so must those of `found`
    be written: to answer `\\sqrt{145}` where 12.04 is wanted within 0.01 is to leave the work undone. Never raises."""
    rational = all(scalar.number is not None or _measured(scalar.node) for scalar in scalars(expected))
    try:
        return all(
            _literal(scalar.node) or _measured(scalar.node) if rational else _done(scalar.node, work)
            for scalar in scalars(found)
        )
    except (TooMuch, Unreadable):
        return False


def scalars(value: Value) -> Iterator[Scalar]:
    """The numbers of an answer that are written in it as numbers; none of an equation or a condition."""
    match value:
        case Scalar():
            yield value
        case Quantity(amount):
            yield amount
        case Labelled(_, inner):
            yield from scalars(inner)
        case Sequence(_, items) | Collection(items):
            for item in items:
                yield from scalars(item)
        case Grid(rows):
            for row in rows:
                yield from row
        case Region(pieces):
            for piece in pieces:
                yield from (bound.scalar for bound in (piece.low, piece.high) if bound.scalar is not None)


def _measured(node: Node) -> bool:
    """Whether it is such a number times variables: a unit of one letter reads as one, until it meets a unit."""
    if not names_of(node):
        return False
    above, below = _factors(node)
    if not below:
        return not above or _literal(above[0] if len(above) == 1 else Product(above))
    return len(above) == len(below) == 1 and _literal(Quotient(above[0], below[0]))


def _factors(node: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The factors above and below the line, without variables and their powers."""
    match node:
        case Name() | Power(Name(), _):
            return (), ()
        case Product(parts):
            found = [_factors(part) for part in parts]
            return tuple(x for above, _ in found for x in above), tuple(
                x for _, below in found for x in below
            )
        case Quotient(above, below):
            # `12 m/h` is read as 12·m·(1/h)
            (one, two), (three, four) = _factors(above) if above != ONE else ((), ()), _factors(below)
            return one + four, two + three
    return (node,), ()


def _literal(node: Node) -> bool:
    """Whether it is a rational number as people write one."""
    if isinstance(node, Product) and node.factors[0] == MINUS_ONE and len(node.factors) > 1:
        node = node.factors[1] if len(node.factors) == 2 else Product(node.factors[1:])
    if _plain(node) or _power_of_ten(node):
        return True
    if not isinstance(node, Product) or len(node.factors) != 2:
        return False
    number, scale = node.factors
    return (scale == _PERCENT and _plain(number)) or (_power_of_ten(scale) and isinstance(number, Number))


def _plain(node: Node) -> bool:
    """A number, or one fraction of two integers that is no integer."""
    if not isinstance(node, Quotient):
        return isinstance(node, Number)
    above, below = node.above, node.below
    return (
        isinstance(above, Number) and above.value.denominator == 1
        and isinstance(below, Number) and below.value.denominator == 1
        and below.value != 0 and (above.value / below.value).denominator != 1
    )  # fmt: skip


def _power_of_ten(node: Node) -> bool:
    return (
        isinstance(node, Power)
        and node.base == _TEN
        and isinstance(node.exponent, Number)
        and node.exponent.value.denominator == 1
    )


def _done(node: Node, work: Work) -> bool:
    """Raises `TooMuch`."""
    if _literal(node):
        return True
    if not children(node):
        return True
    if Normaliser(work).of(node).value() is not None:
        return False
    if isinstance(node, Sum | Product):
        numbers = tuple(part for part in children(node) if part != MINUS_ONE and _literal(part))
        if len(numbers) > 1 and not (isinstance(node, Product) and _literal(Product(numbers))):
            return False
    return all(_done(part, work) for part in children(node))
