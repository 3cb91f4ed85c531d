"""Inequalities: sets of reals where that is plain, differences otherwise.

Invariant: nothing is solved but linear conditions on one variable, and |ax + b| against a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from shared.verification.comparators.formula.limits import Unreadable, Work
from shared.verification.comparators.formula.nodes import (
    FORMULAS,
    Call,
    Infinity,
    Name,
    Node,
    Number,
    Relation,
    Sum,
    names_of,
    negated,
)
from shared.verification.comparators.formula.polynomial import NOTHING, as_constant, rational
from shared.verification.comparators.formula.regions import (
    ABOVE_ALL,
    BELOW_ALL,
    REALS,
    bound_of,
    common,
    interval,
    joined,
    outside,
    point,
)
from shared.verification.comparators.formula.values import (
    Bound,
    Inequality,
    Infinite,
    Piece,
    Region,
    Scalar,
    Value,
)

_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}


@dataclass(slots=True)
class Conditions:
    work: Work
    scalar: Callable[[Node], Scalar]

    def of(self, node: Relation) -> Value:
        variables = {name for side in node.sides if isinstance(side, FORMULAS) for name in names_of(side)}
        if len(variables) == 1:
            variable = variables.pop()
            pieces: tuple[Piece, ...] = REALS
            for index, operator in enumerate(node.operators):
                found = self._link(node.sides[index], operator, node.sides[index + 1], variable)
                if found is None:
                    break
                pieces = common(pieces, found)
            else:
                return Region(pieces, variable)
        return self._difference(node)

    def _difference(self, node: Relation) -> Inequality:
        if len(node.operators) != 1 or node.operators[0] == "!=":
            raise Unreadable("a chain of conditions that is not solved here")
        left, right = node.sides
        if not isinstance(left, FORMULAS) or not isinstance(right, FORMULAS):
            raise Unreadable("a condition on what is no formula")
        operator = node.operators[0]
        if operator.startswith("<"):
            left, right = right, left
        return Inequality(self.scalar(Sum((left, negated(right)))), operator.endswith("="))

    def _link(self, left: Node, operator: str, right: Node, variable: str) -> tuple[Piece, ...] | None:
        if isinstance(right, Name):
            left, operator, right = right, _MIRRORED[operator], left
        if isinstance(left, Name):
            end = Infinite(right.negative) if isinstance(right, Infinity) else self._constant(right)
            bound = bound_of(end, self.work) if end is not None else None
            return None if bound is None else _half_line(operator, bound)
        if isinstance(left, Infinity) or isinstance(right, Infinity):
            return None
        if isinstance(right, Call) and right.name == "abs":
            left, operator, right = right, _MIRRORED[operator], left
        if isinstance(left, Call) and left.name == "abs":
            return self._absolute(left.arguments[0], operator, right, variable)
        line = self._line(Sum((left, negated(right))), variable)
        if line is None:
            return None
        slope, offset = line
        operator = operator if slope > 0 else _MIRRORED[operator]
        return _half_line(operator, _at(-offset / slope))

    def _constant(self, node: Node) -> Scalar | None:
        return self.scalar(node) if isinstance(node, FORMULAS) and not names_of(node) else None

    def _absolute(self, inner: Node, operator: str, limit: Node, variable: str) -> tuple[Piece, ...] | None:
        line, end = self._line(inner, variable), self._constant(limit)
        number = end.number if end is not None else None
        if line is None or number is None or number < 0:
            return None
        slope, offset = line
        low, high = sorted(((-number - offset) / slope, (number - offset) / slope))
        if operator == "!=":
            return outside(joined((*point(_at(low)), *point(_at(high)))))
        closed = operator in ("<=", ">")
        within = interval(_at(low), closed, _at(high), closed)
        return within if operator.startswith("<") else outside(within)

    def _line(self, node: Node, variable: str) -> tuple[Fraction, Fraction] | None:
        """`slope · variable + offset` with rational numbers."""
        normal = self.scalar(node).normal
        below = as_constant(normal.below) if normal is not None else None
        if normal is None or not below or len(normal.above) > 2:
            return None
        slope, offset = Fraction(0), Fraction(0)
        for monomial, value in normal.above.items():
            if monomial == NOTHING:
                offset = value / below
            elif len(monomial) == 1 and monomial[0][0].key == variable and monomial[0][1] == 1:
                slope = value / below
            else:
                return None
        return (slope, offset) if slope else None


def _at(value: Fraction) -> Bound:
    return Bound(0, value, Scalar(Number(value), rational(value)))


def _half_line(operator: str, bound: Bound) -> tuple[Piece, ...]:
    match operator:
        case "<" | "<=":
            return interval(BELOW_ALL, False, bound, operator == "<=" and not bound.side)
        case ">" | ">=":
            return interval(bound, operator == ">=" and not bound.side, ABOVE_ALL, False)
    return outside(point(bound))
