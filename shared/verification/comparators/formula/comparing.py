"""Are two answers equal?

Invariant: symmetric. The two values are put in one order first, so that what is done does not depend on which was
given first; and every rule is on the pair of kinds, never on who wrote which.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.verification.comparators.formula.deciding import Decider, without_degrees
from shared.verification.comparators.formula.interpret import Interpreter
from shared.verification.comparators.formula.limits import TooMuch
from shared.verification.comparators.formula.nodes import Name, Node, Number, Product
from shared.verification.comparators.formula.normal import Normaliser
from shared.verification.comparators.formula.units import Unit, find_unit, unit_of
from shared.verification.comparators.formula.values import (
    Bound,
    Collection,
    Equation,
    Grid,
    Inequality,
    Labelled,
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
class Pairing:
    """One comparison."""

    rules: Rules
    decider: Decider
    _interpreter: Interpreter = field(init=False)

    def __post_init__(self) -> None:
        self._interpreter = Interpreter(self.rules, self.decider.work)

    def same(self, left: Value, right: Value) -> bool:
        """Raises `TooMuch` past the work."""
        first, second = sorted((left, right), key=repr)
        return self._same(first, second)

    def _same(self, left: Value, right: Value) -> bool:
        self.decider.work.spend(1)
        if left == right:
            return True
        if type(left) is type(right):
            return self._alike(left, right)
        return self._unlike(left, right) or self._unlike(right, left)

    def _alike(self, left: Value, right: Value) -> bool:
        match left, right:
            case Scalar(), Scalar():
                return self._scalars(left, right)
            case Quantity(), Quantity():
                return self._quantities(left, right)
            case Sequence(), Sequence():
                brackets = (left.opening, left.closing) == (right.opening, right.closing)
                return (brackets or len(left.items) > 2) and self._in_order(left.items, right.items)
            case Collection(), Collection():
                return self._collections(left, right)
            case Region(), Region():
                return self._regions(left, right)
            case Grid(), Grid():
                return self._rows(left.rows, right.rows)
            case Equation(), Equation():
                return self.decider.proportional(left.difference, right.difference)
            case Labelled(), Labelled():
                return self._labelled(left, right)
            case Inequality(), Inequality():
                same_kind = left.inclusive == right.inclusive
                return same_kind and self.decider.proportional(
                    left.difference, right.difference, positive=True
                )
            case Proportion(), Proportion():
                return self._proportions(left, right)
        return False

    def _unlike(self, left: Value, right: Value) -> bool:
        match left, right:
            case Labelled(_, value, equation), Equation():
                if equation is not None:
                    return self.decider.proportional(equation.difference, right.difference)
            case Labelled(_, value), _:
                return self.same(value, right)
            case Collection((item,)), _:
                return self.same(item, right)
            case Collection() as collection, Sequence() if collection.assigned:
                return _sorted_labels(collection) and right.opening == "(" and self._in_order(
                    collection.items, right.items
                )  # fmt: skip
            case Region(), Sequence() | Collection():
                other = self._interpreter.region(right)
                return other is not None and self._pieces(left.pieces, other)
            case Quantity(), Scalar():
                return self._quantity_and_scalar(left, right)
            case Grid(), Sequence():
                return self._grid_and_lists(left, right)
        return False

    def _scalars(self, left: Scalar, right: Scalar) -> bool:
        if self.decider.same(left, right):
            return True
        bare = without_degrees(left.node), without_degrees(right.node)
        if self.rules.missing_unit == "refused" or (bare[0] is None) == (bare[1] is None):
            return False
        first = left if bare[0] is None else self._scalar(bare[0])
        second = right if bare[1] is None else self._scalar(bare[1])
        return self.decider.same(first, second)

    def _scalar(self, node: Node) -> Scalar:
        try:
            return Scalar(node, Normaliser(self.decider.work).of(node))
        except TooMuch:
            return Scalar(node)

    def _quantities(self, left: Quantity, right: Quantity) -> bool:
        if left.unit.dimension != right.unit.dimension:
            return False
        if self.rules.units == "literal" and left.unit.factor != right.unit.factor:
            return False
        return self.decider.same(
            self._in_base_units(left.amount, left.unit), self._in_base_units(right.amount, right.unit)
        )

    def _in_base_units(self, amount: Scalar, unit: Unit) -> Scalar:
        return amount if unit.factor == 1 else self._scalar(Product((Number(unit.factor), amount.node)))

    def _quantity_and_scalar(self, left: Quantity, right: Scalar) -> bool:
        measured = self._measured(right)
        if measured is not None:
            return self._quantities(left, measured)
        if self.rules.missing_unit == "refused" or not left.unit.known:
            return False
        return self.decider.same(left.amount, right)

    def _measured(self, scalar: Scalar) -> Quantity | None:
        """`5m/s` as a product of letters, where each of them is a unit; a letter alone is a name."""
        normal = scalar.normal
        if (
            isinstance(scalar.node, Name)
            or normal is None
            or len(normal.above) != 1
            or len(normal.below) != 1
        ):
            return None
        (above, value), (below, divisor) = next(iter(normal.above.items())), next(iter(normal.below.items()))
        parts = [(atom.key, power) for atom, power in above] + [(atom.key, -power) for atom, power in below]
        if not parts or any(
            len(word) > 1 or find_unit(word) is None or abs(power) > 9 for word, power in parts
        ):
            return None
        return Quantity(self._scalar(Number(value / divisor)), unit_of(parts), tuple(parts))

    def _in_order(self, left: tuple[Value, ...], right: tuple[Value, ...]) -> bool:
        return len(left) == len(right) and all(self.same(a, b) for a, b in zip(left, right, strict=True))

    def _collections(self, left: Collection, right: Collection) -> bool:
        if left.assigned != right.assigned:
            assigned, other = (left, right) if left.assigned else (right, left)
            return other.bare and _sorted_labels(assigned) and self._in_order(assigned.items, other.items)
        return self._covers(left.items, right.items) and self._covers(right.items, left.items)

    def _covers(self, left: tuple[Value, ...], right: tuple[Value, ...]) -> bool:
        return all(any(self.same(a, b) for b in right) for a in left)

    def as_bags(self, left: tuple[Value, ...], right: tuple[Value, ...]) -> bool:
        """Equal with multiplicity. Greedy is exact, because being equal carries over."""
        if len(left) != len(right):
            return False
        rest = list(right)
        for item in left:
            found = next((index for index, other in enumerate(rest) if self.same(item, other)), None)
            if found is None:
                return False
            del rest[found]
        return True

    def _regions(self, left: Region, right: Region) -> bool:
        if left.variable and right.variable and left.variable != right.variable:
            return False
        return self._pieces(left.pieces, right.pieces)

    def _pieces(self, left: tuple[Piece, ...], right: tuple[Piece, ...]) -> bool:
        return len(left) == len(right) and all(
            (a.low_in, a.high_in) == (b.low_in, b.high_in) and self._bounds(a.low, b.low) and self._bounds(a.high, b.high)
            for a, b in zip(left, right, strict=True)
        )  # fmt: skip

    def _bounds(self, left: Bound, right: Bound) -> bool:
        if (left.side, left.position) != (right.side, right.position):
            return False
        return left.scalar is None or right.scalar is None or self.decider.same(left.scalar, right.scalar)

    def _rows(self, left: tuple[tuple[Scalar, ...], ...], right: tuple[tuple[Scalar, ...], ...]) -> bool:
        return len(left) == len(right) and all(self._in_order(a, b) for a, b in zip(left, right, strict=True))

    def _grid_and_lists(self, grid: Grid, lists: Sequence) -> bool:
        rows = []
        for row in lists.items:
            if not isinstance(row, Sequence) or row.opening != "[" or row.closing != "]":
                return False
            rows.append(row.items)
        return lists.opening == "[" and len(rows) == len(grid.rows) and all(
            self._in_order(a, b) for a, b in zip(grid.rows, rows, strict=True)
        )  # fmt: skip

    def _labelled(self, left: Labelled, right: Labelled) -> bool:
        if left.name == right.name and self.same(left.value, right.value):
            return True
        if left.equation is None or right.equation is None:
            return False
        return self.decider.proportional(left.equation.difference, right.equation.difference)

    def _proportions(self, left: Proportion, right: Proportion) -> bool:
        if len(left.parts) != len(right.parts):
            return False
        a, b = left.parts[0].node, right.parts[0].node
        return all(
            self.decider.same(self._scalar(Product((x.node, b))), self._scalar(Product((y.node, a))))
            for x, y in zip(left.parts, right.parts, strict=True)
        )


def _sorted_labels(collection: Collection) -> bool:
    labels = [item.name for item in collection.items if isinstance(item, Labelled)]
    return labels == sorted(labels)
