"""Are two formulas equal?

Invariant: exact first: numbers as fractions, then normal forms by cross-multiplying; where they hold functions or
roots that arithmetic cannot open, the resort that was passed in decides. Symmetric, and bounded by one `Work` a
comparison, whatever the number of formulas in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from shared.verification.comparators.formula.limits import TooMuch, Work
from shared.verification.comparators.formula.nodes import Constant, Node, Number, Product
from shared.verification.comparators.formula.normal import IMAGINARY
from shared.verification.comparators.formula.numeric import Outcome
from shared.verification.comparators.formula.polynomial import Polynomial, Rational, atoms_of, multiply
from shared.verification.comparators.formula.values import Scalar

Resort = Callable[[Node, Node, Work], Outcome]
"""The last word on two formulas; must be symmetric, deterministic and bounded by the work."""


@dataclass(slots=True)
class Decider:
    work: Work
    resort: Resort
    undecided: bool = False
    """Whether something was left open, and so counted as not equal."""

    def same(self, left: Scalar, right: Scalar) -> bool:
        self.work.spend(1)
        if left.node == right.node:
            return True
        if left.number is not None and right.number is not None:
            return left.number == right.number
        exact = self._exactly(left, right)
        if exact is not None:
            return exact
        first, second = sorted((left.node, right.node), key=repr)
        return self._resorted(first, second)

    def proportional(self, left: Scalar, right: Scalar, positive: bool = False) -> bool:
        """Whether one is a constant (`positive`) multiple of the other, by their normal forms; never zero times."""
        if left.normal is None or right.normal is None:
            return self.same(left, right)
        try:
            first = multiply(left.normal.above, right.normal.below, self.work)
            second = multiply(right.normal.above, left.normal.below, self.work)
            factor = _factor(first, second)
            if factor is not None and (factor > 0 or not positive):
                return first == multiply(second, {(): factor}, self.work)
        except TooMuch:
            self.undecided = True
        return self.same(left, right)

    def _exactly(self, left: Scalar, right: Scalar) -> bool | None:
        """None where the normal forms leave it open."""
        if left.normal is None or right.normal is None:
            return None
        try:
            if equal_normals(left.normal, right.normal, self.work):
                return True
        except TooMuch:
            return None
        atoms = atoms_of(left.normal) | atoms_of(right.normal)
        return False if all(atom.free or atom == IMAGINARY for atom in atoms) else None

    def _resorted(self, left: Node, right: Node) -> bool:
        try:
            outcome = self.resort(left, right, self.work)
        except TooMuch:
            outcome = "undecided"
        self.undecided |= outcome == "undecided"
        return outcome == "equal"


def equal_normals(left: Rational, right: Rational, work: Work) -> bool:
    if left.below == right.below:
        return left.above == right.above
    return multiply(left.above, right.below, work) == multiply(right.above, left.below, work)


def _factor(left: Polynomial, right: Polynomial) -> Fraction | None:
    if not left or not right or left.keys() != right.keys():
        return None
    some = min(left)
    return left[some] / right[some]


def without_degrees(node: Node) -> Node | None:
    """`30°` as 30: the sign at the end of a whole value taken off; None where there is none."""
    if not isinstance(node, Product):
        return None
    *others, last = node.factors
    if last == Constant("degree"):
        return others[0] if len(others) == 1 else Product(tuple(others))
    inner = without_degrees(last) if len(others) == 1 and isinstance(others[0], Number) else None
    return Product((others[0], inner)) if inner is not None else None
