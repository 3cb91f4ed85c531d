"""The tree of a parsed answer.

Invariant: nodes are immutable plain data with a deterministic `repr`, which is also their order and their key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

ConstantName = Literal["pi", "e", "i", "degree", "percent"]


@dataclass(frozen=True, slots=True)
class Number:
    value: Fraction


@dataclass(frozen=True, slots=True)
class Name:
    """A variable: one letter or a Greek name, with its subscript after `_`."""

    text: str


@dataclass(frozen=True, slots=True)
class Constant:
    name: ConstantName


@dataclass(frozen=True, slots=True)
class Infinity:
    negative: bool = False


@dataclass(frozen=True, slots=True)
class Sum:
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Product:
    factors: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Quotient:
    above: Node
    below: Node


@dataclass(frozen=True, slots=True)
class Power:
    base: Node
    exponent: Node


@dataclass(frozen=True, slots=True)
class Call:
    """`root(x, n)`, `log(x, base)`, `binomial(n, k)`, and functions of one argument by name."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class PlusMinus:
    """`±x` (`upper` 1) or `∓x` (`upper` -1): two values, with the signs of one formula taken together."""

    operand: Node
    upper: int


@dataclass(frozen=True, slots=True)
class Brackets:
    """Items in round or square brackets, which may differ: `(0,1]`."""

    opening: str
    items: tuple[Node, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class Braces:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Builder:
    """`{x | condition}`."""

    variable: str
    domain: Node | None
    conditions: Node


@dataclass(frozen=True, slots=True)
class NamedSet:
    """`R`, `Z`, `N`, `Q`, `C`, or `empty`."""

    name: str


@dataclass(frozen=True, slots=True)
class SetOperation:
    operation: Literal["cup", "cap", "setminus"]
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class Words:
    text: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A value with its unit as (name, exponent) pairs, in the order written."""

    value: Node
    unit: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """`first op second op …`."""

    sides: tuple[Node, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Statements side by side without brackets, joined by `,`, `or` or `and`."""

    items: tuple[Node, ...]
    joiner: Literal[",", "or", "and"]


Node: TypeAlias = (
    Number | Name | Constant | Infinity | Sum | Product | Quotient | Power | Call | PlusMinus | Brackets | Braces
    | Builder | NamedSet | SetOperation | Matrix | Words | Measured | Relation | Ratio | Listing
)  # fmt: skip

FORMULAS = (Number, Name, Constant, Infinity, Sum, Product, Quotient, Power, Call, PlusMinus)
"""What arithmetic may be done with; `Infinity` only alone or with a sign."""
ZERO, ONE, MINUS_ONE = Number(Fraction(0)), Number(Fraction(1)), Number(Fraction(-1))


def negated(node: Node) -> Node:
    if isinstance(node, Number):
        return Number(-node.value)
    if isinstance(node, Infinity):
        return Infinity(not node.negative)
    return Product((MINUS_ONE, node))


def children(node: Node) -> tuple[Node, ...]:
    """Of a formula."""
    match node:
        case Sum(parts) | Product(parts) | Call(_, parts):
            return parts
        case Quotient(left, right) | Power(left, right):
            return (left, right)
        case PlusMinus(operand, _):
            return (operand,)
    return ()


def rebuilt(node: Node, change: Callable[[Node], Node | None]) -> Node:
    """A formula with every node for which `change` gives another replaced; children of replacements stay."""
    other = change(node)
    if other is not None:
        return other
    match node:
        case Sum(parts):
            return Sum(tuple(rebuilt(part, change) for part in parts))
        case Product(parts):
            return Product(tuple(rebuilt(part, change) for part in parts))
        case Call(name, parts):
            return Call(name, tuple(rebuilt(part, change) for part in parts))
        case Quotient(above, below):
            return Quotient(rebuilt(above, change), rebuilt(below, change))
        case Power(base, exponent):
            return Power(rebuilt(base, change), rebuilt(exponent, change))
        case PlusMinus(operand, upper):
            return PlusMinus(rebuilt(operand, change), upper)
    return node


def any_node(node: Node, holds: Callable[[Node], bool]) -> bool:
    return holds(node) or any(any_node(child, holds) for child in children(node))


def names_of(node: Node) -> frozenset[str]:
    """The variables of a formula."""
    if isinstance(node, Name):
        return frozenset((node.text,))
    return frozenset().union(*(names_of(child) for child in children(node)))


def size_of(node: Node) -> int:
    return 1 + sum(size_of(child) for child in children(node))
