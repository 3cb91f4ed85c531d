"""Polynomials and their quotients over atoms, with exact coefficients.

Invariant: every product is paid for from a `Work` budget and no coefficient passes `MAX_BITS`, so no input costs
more than the budget. An atom that is a root (of an integer; `i` is the root of -1) never keeps an exponent at or above
its degree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from shared.verification.comparators.formula.limits import MAX_BITS, TooMuch, Unreadable, Work


@dataclass(frozen=True, slots=True, order=True)
class Atom:
    """What arithmetic does not look into. `degree` > 0: its `degree`-th power is the integer `radicand`."""

    key: str
    degree: int = 0
    radicand: int = 0
    free: bool = False
    """A variable or π: nothing algebraic holds between free atoms."""


Monomial = tuple[tuple[Atom, int], ...]
Polynomial = Mapping[Monomial, Fraction]
NOTHING: Monomial = ()


def constant(value: Fraction) -> Polynomial:
    return {NOTHING: value} if value else {}


def of_atom(atom: Atom) -> Polynomial:
    return {((atom, 1),): Fraction(1)}


def as_constant(polynomial: Polynomial) -> Fraction | None:
    if not polynomial:
        return Fraction(0)
    return polynomial.get(NOTHING) if len(polynomial) == 1 else None


def bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def price(value: Fraction) -> int:
    """Of an operation on a coefficient of this size: products and gcds of big integers grow with its square."""
    return 1 + (bits(value) >> 9) ** 2


def bounded(value: Fraction) -> Fraction:
    if bits(value) > MAX_BITS:
        raise TooMuch(f"a number of over {MAX_BITS} bits")
    return value


def add(left: Polynomial, right: Polynomial, work: Work) -> Polynomial:
    out = dict(left)
    for monomial, value in right.items():
        total = out.get(monomial, Fraction(0)) + value
        work.spend(price(total))
        if total:
            out[monomial] = bounded(total)
        else:
            out.pop(monomial, None)
    return out


def multiply(left: Polynomial, right: Polynomial, work: Work) -> Polynomial:
    out: dict[Monomial, Fraction] = {}
    for first, a in left.items():
        for second, b in right.items():
            monomial, factor = _joined(first, second)
            value = a * b * factor
            work.spend(price(value) + len(monomial))
            total = out.get(monomial, Fraction(0)) + value
            if total:
                out[monomial] = bounded(total)
            else:
                out.pop(monomial, None)
    return out


def scaled(polynomial: Polynomial, factor: Fraction, work: Work) -> Polynomial:
    return multiply(polynomial, constant(factor), work)


def _joined(first: Monomial, second: Monomial) -> tuple[Monomial, int]:
    """The product of two monomials, and the integer that reduced roots left."""
    if not first or not second:
        return first or second, 1
    exponents = dict(first)
    factor = 1
    for atom, exponent in second:
        total = exponents.get(atom, 0) + exponent
        if atom.degree and total >= atom.degree:
            factor *= atom.radicand ** (total // atom.degree)
            total %= atom.degree
        if total:
            exponents[atom] = total
        else:
            exponents.pop(atom, None)
    return tuple(sorted(exponents.items())), factor


@dataclass(frozen=True, slots=True)
class Rational:
    """`above / below`; `below` is not the zero polynomial. Not reduced: compare by cross-multiplying."""

    above: Polynomial
    below: Polynomial

    def key(self) -> str:
        """Equal keys mean equal values; the reverse holds only where nothing could be cancelled."""
        return f"{_key(self.above)}/{_key(self.below)}"

    def value(self) -> Fraction | None:
        """Where it is one number without atoms."""
        above, below = as_constant(self.above), as_constant(self.below)
        return above / below if above is not None and below else None


UNIT = constant(Fraction(1))


def rational(value: Fraction) -> Rational:
    return Rational(constant(bounded(value)), UNIT)


def plus(left: Rational, right: Rational, work: Work) -> Rational:
    if left.below == right.below:
        return tidy(Rational(add(left.above, right.above, work), left.below), work)
    crossed = add(multiply(left.above, right.below, work), multiply(right.above, left.below, work), work)
    return tidy(Rational(crossed, multiply(left.below, right.below, work)), work)


def times(left: Rational, right: Rational, work: Work) -> Rational:
    return tidy(
        Rational(multiply(left.above, right.above, work), multiply(left.below, right.below, work)), work
    )


def inverse(value: Rational) -> Rational:
    if not value.above:
        raise Unreadable("a division by zero")
    return Rational(value.below, value.above)


def to_the(base: Rational, exponent: int, work: Work) -> Rational:
    """An integer power, by squaring. The size is known before anything is computed."""
    if exponent < 0:
        base, exponent = inverse(base), -exponent
    largest = max((bits(v) for part in (base.above, base.below) for v in part.values()), default=0)
    plain = base.value()
    if plain is not None and abs(plain) in (0, 1):
        return rational(plain ** (2 - exponent % 2) if exponent else Fraction(1))
    if largest > 1 and (largest - 1) * exponent > MAX_BITS:
        raise TooMuch(f"a number of over {MAX_BITS} bits")
    if exponent > MAX_BITS:
        raise TooMuch(f"an exponent over {MAX_BITS}")
    result, square = rational(Fraction(1)), base
    while exponent:
        if exponent & 1:
            result = times(result, square, work)
        exponent >>= 1
        if exponent:
            square = times(square, square, work)
    return result


def minus(left: Rational, right: Rational, work: Work) -> Rational:
    return plus(left, Rational(scaled(right.above, Fraction(-1), work), right.below), work)


def tidy(value: Rational, work: Work) -> Rational:
    """Common monomials cancelled, and the denominator's first coefficient 1."""
    above, below = value.above, value.below
    if not above:
        return Rational({}, UNIT)
    work.spend(len(above) + len(below))
    shared = _common(above, below)
    if shared:
        above, below = _divided(above, shared), _divided(below, shared)
    lead = below[min(below)]
    if lead != 1:
        above, below = scaled(above, 1 / lead, work), scaled(below, 1 / lead, work)
    return Rational(above, below)


def _common(above: Polynomial, below: Polynomial) -> dict[Atom, int]:
    if below == UNIT:
        return {}
    common: dict[Atom, int] | None = None
    for polynomial in (below, above):
        for monomial in polynomial:
            powers = dict(monomial)
            common = (
                powers if common is None else {a: min(n, powers[a]) for a, n in common.items() if a in powers}
            )
            if not common:
                return {}
    return common or {}


def _divided(polynomial: Polynomial, by: Mapping[Atom, int]) -> Polynomial:
    return {
        tuple((a, n - by.get(a, 0)) for a, n in monomial if n > by.get(a, 0)): value
        for monomial, value in polynomial.items()
    }


def atoms_of(value: Rational) -> frozenset[Atom]:
    return frozenset(atom for part in (value.above, value.below) for monomial in part for atom, _ in monomial)


def _key(polynomial: Polynomial) -> str:
    parts = []
    for monomial, value in sorted(polynomial.items()):
        parts.append(f"{value}" + "".join(f"*{atom.key}^{power}" for atom, power in monomial))
    return "(" + "+".join(parts) + ")"
