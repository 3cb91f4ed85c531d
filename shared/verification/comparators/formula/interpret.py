"""From a tree to a value.

Invariant: work is bounded by the budget passed in; what the tree says is taken as it stands: no formula is solved but linear
inequalities in one variable and |ax + b| against a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shared.verification.comparators.formula.conditions import Conditions
from shared.verification.comparators.formula.limits import TooMuch, Unreadable, Work
from shared.verification.comparators.formula.nodes import (
    FORMULAS,
    Braces,
    Brackets,
    Builder,
    Call,
    Constant,
    Infinity,
    Listing,
    Matrix,
    Measured,
    Name,
    NamedSet,
    Node,
    PlusMinus,
    Ratio,
    Relation,
    SetOperation,
    Sum,
    Words,
    any_node,
    names_of,
    negated,
    rebuilt,
)
from shared.verification.comparators.formula.normal import Normaliser
from shared.verification.comparators.formula.regions import (
    REALS,
    bound_of,
    common,
    interval,
    joined,
    outside,
    point,
)
from shared.verification.comparators.formula.units import unit_of
from shared.verification.comparators.formula.values import (
    Collection,
    Equation,
    Grid,
    Infinite,
    Labelled,
    Named,
    Phrase,
    Piece,
    Proportion,
    Quantity,
    Region,
    Rules,
    Scalar,
    Sequence,
    Value,
)


@dataclass(slots=True)
class Interpreter:
    rules: Rules
    work: Work

    def of(self, node: Node) -> Value:
        """Raises `Unreadable` for what has no value, `TooMuch` for what is beyond the limits."""
        if isinstance(node, Infinity):
            return Infinite(node.negative)
        if isinstance(node, FORMULAS):
            return self._formula(node)
        return self._set(node) or self._statement(node)

    def _set(self, node: Node) -> Value | None:
        match node:
            case Brackets(opening, items, closing):
                return Sequence(opening, tuple(self.of(item) for item in items), closing)
            case Braces(items):
                return Collection(tuple(self.of(item) for item in items))
            case NamedSet(name):
                return Region(REALS) if name == "R" else Collection(()) if name == "empty" else Named(name)
            case SetOperation():
                return self._set_operation(node)
            case Builder():
                return self._builder(node)
        return None

    def _statement(self, node: Node) -> Value:
        match node:
            case Measured(value, unit):
                return Quantity(self.scalar(value), unit_of(unit), unit)
            case Matrix(rows):
                return Grid(tuple(tuple(self.scalar(entry) for entry in row) for row in rows))
            case Words(text):
                return Phrase(folded(text))
            case Ratio(parts):
                return Proportion(tuple(self.scalar(part) for part in parts))
            case Relation():
                return self._relation(node)
            case Listing(items, joiner):
                return self._listing(items, joiner)
        raise Unreadable(f"{type(node).__name__.lower()} is no answer")

    def scalar(self, node: Node) -> Scalar:
        if not isinstance(node, FORMULAS) or isinstance(node, Infinity):
            raise Unreadable(f"{type(node).__name__.lower()} in place of a formula")
        if any_node(node, lambda part: isinstance(part, PlusMinus)):
            raise Unreadable("two values by one sign in place of one formula")
        if self.rules.percent == "distinct":
            node = rebuilt(node, _percent_apart)
        try:
            return Scalar(node, Normaliser(self.work).of(node))
        except TooMuch:
            return Scalar(node)

    def _formula(self, node: Node) -> Value:
        if not any_node(node, lambda part: isinstance(part, PlusMinus)):
            return self.scalar(node)
        return Collection(tuple(self.scalar(rebuilt(node, _signed(sign))) for sign in (1, -1)), bare=True)

    def _relation(self, node: Relation) -> Value:
        if node.operators == ("in",):
            variable, within = node.sides
            if not isinstance(variable, Name):
                raise Unreadable("what is in the set is no variable")
            value = self.of(within)
            region = self.region(value)
            return Labelled(variable.text, value) if region is None else Region(region, variable.text)
        if node.operators == ("=",):
            return self._equation(*node.sides)
        if set(node.operators) & {"=", "in"}:
            raise Unreadable("a chain of relations of different kinds")
        return Conditions(self.work, self.scalar).of(node)

    def _equation(self, left: Node, right: Node) -> Value:
        if not _label(left) and isinstance(right, Name) and isinstance(left, FORMULAS):
            left, right = right, left
        equation = None
        if isinstance(left, FORMULAS) and isinstance(right, FORMULAS) and not isinstance(right, Infinity):
            two = any_node(right, lambda part: isinstance(part, PlusMinus))
            equation = None if two else Equation(self.scalar(_difference(left, right)))
        label = _label(left)
        own = frozenset((label,)) if label else frozenset()
        if label and not (isinstance(right, FORMULAS) and names_of(right) & own):
            return Labelled(label, self.of(right), equation)
        if equation is None:
            raise Unreadable("an equation between what are no formulas")
        if not names_of(equation.difference.node):
            raise Unreadable("an equation between two numbers is not one answer")
        return equation

    def _listing(self, nodes: tuple[Node, ...], joiner: str) -> Value:
        items = tuple(self.of(node) for node in nodes)
        regions = [self.region(item) for item in items]
        variables = {_variable(item) for item in items}
        conditions = any(isinstance(item, Region) and item.variable for item in items)
        if conditions and len(variables) == 1 and all(region is not None for region in regions):
            found: tuple[Piece, ...] = regions[0] or ()
            for region in regions[1:]:
                found = joined((*found, *(region or ()))) if joiner == "or" else common(found, region or ())
            return Region(found, variables.pop())
        labels = [item.name for item in items if isinstance(item, Labelled)]
        stems = {label.partition("_")[0] for label in labels}
        assigned = len(labels) == len(items) and len(set(labels)) == len(labels) and len(stems) == len(labels)
        return Collection(items, bare=True, assigned=assigned)

    def _set_operation(self, node: SetOperation) -> Value:
        left, right = self.of(node.left), self.of(node.right)
        if node.operation == "cup" and isinstance(left, Collection) and isinstance(right, Collection):
            return Collection((*left.items, *right.items))
        first, second = self.region(left), self.region(right)
        if first is None or second is None:
            raise Unreadable("an operation on what are no sets of real numbers")
        self.work.spend(8 * (1 + len(first)) * (1 + len(second)))
        match node.operation:
            case "cup":
                return Region(joined((*first, *second)))
            case "cap":
                return Region(common(first, second))
        return Region(common(first, outside(second)))

    def _builder(self, node: Builder) -> Value:
        domain = self.of(node.domain) if node.domain is not None else Region(REALS)
        found, limits = self.of(node.conditions), self.region(domain)
        region = self.region(found)
        if limits is None or region is None or _variable(found) != node.variable:
            raise Unreadable("a set by a condition that is not read here")
        return Region(common(region, limits), node.variable)

    def region(self, value: Value) -> tuple[Piece, ...] | None:
        """The value as a set of reals; None where it is none."""
        match value:
            case Region(pieces):
                return pieces
            case Sequence(opening, (low, high), closing):
                ends = bound_of(low, self.work), bound_of(high, self.work)
                if ends[0] is None or ends[1] is None:
                    return None
                try:
                    return interval(ends[0], opening == "[", ends[1], closing == "]")
                except Unreadable:
                    return None
            case Collection(items):
                return self._points(items)
            case Labelled(_, inner) if isinstance(inner, Scalar):
                return self._points((inner,))
        return None

    def _points(self, items: tuple[Value, ...]) -> tuple[Piece, ...] | None:
        out: list[Piece] = []
        for item in items:
            bound = bound_of(item.value if isinstance(item, Labelled) else item, self.work)
            if bound is None or bound.side:
                return None
            out += point(bound)
        return joined(out)


def folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _variable(value: Value) -> str:
    return value.variable if isinstance(value, Region) else value.name if isinstance(value, Labelled) else ""


def _difference(left: Node, right: Node) -> Node:
    return Sum((left, negated(right)))


def _percent_apart(node: Node) -> Node | None:
    return Name("%") if node == Constant("percent") else None


def _signed(sign: int) -> Callable[[Node], Node | None]:
    def change(node: Node) -> Node | None:
        if not isinstance(node, PlusMinus):
            return None
        inner = rebuilt(node.operand, change)
        return inner if node.upper * sign > 0 else negated(inner)

    return change


def _label(node: Node) -> str:
    """The name that the left side of an assignment gives; empty where it is no name."""
    match node:
        case Name(text):
            return text
        case Call(name, arguments) if name.startswith("apply "):
            return f"{name} {arguments!r}"
        case Words(text):
            return folded(text)
        case Brackets(_, items, _) if items and all(isinstance(item, Name) for item in items):
            return ",".join(item.text for item in items if isinstance(item, Name))
    return ""
