"""Formulas to quotients of polynomials over atoms.

Invariant: two formulas with equal normal forms are equal wherever both are defined; functions, roots and powers that
arithmetic cannot open become atoms under the key of their own normal form. Nothing here is approximate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from shared.verification.comparators.formula.limits import MAX_BITS, TooMuch, Unreadable, Work
from shared.verification.comparators.formula.nodes import (
    Call,
    Constant,
    Name,
    Node,
    Number,
    Power,
    Product,
    Quotient,
    Sum,
)
from shared.verification.comparators.formula.polynomial import (
    UNIT,
    Atom,
    Rational,
    bits,
    inverse,
    of_atom,
    plus,
    rational,
    scaled,
    times,
    to_the,
)

IMAGINARY, PI = Atom("i", 2, -1), Atom("pi", free=True)
_MAX_FACTORIAL = 1000
_ODD = frozenset(("sin", "tan", "cot", "csc", "arcsin", "arctan", "sinh", "tanh", "arcsinh", "arctanh"))
_EVEN = frozenset(("cos", "sec", "cosh", "abs"))


@dataclass(slots=True)
class Normaliser:
    work: Work

    def of(self, node: Node) -> Rational:
        """Raises `Unreadable` where the formula has no value, `TooMuch` where it is too large."""
        self.work.spend(1)
        match node:
            case Number(value):
                return rational(value)
            case Name(text):
                return _atomic(Atom(text, free=True))
            case Constant():
                return self._constant(node)
            case Sum(terms):
                total = self.of(terms[0])
                for term in terms[1:]:
                    total = plus(total, self.of(term), self.work)
                return total
            case Product(factors):
                total = self.of(factors[0])
                for factor in factors[1:]:
                    total = times(total, self.of(factor), self.work)
                return total
            case Quotient(above, below):
                return times(self.of(above), inverse(self.of(below)), self.work)
            case Power(base, exponent):
                return self._power(base, exponent)
            case Call(name, arguments):
                return self._call(name, arguments)
        raise Unreadable(f"arithmetic with {type(node).__name__.lower()}")

    def _constant(self, node: Constant) -> Rational:
        match node.name:
            case "pi":
                return _atomic(PI)
            case "degree":
                return times(_atomic(PI), rational(Fraction(1, 180)), self.work)
            case "percent":
                return rational(Fraction(1, 100))
            case "i":
                return _atomic(IMAGINARY)
        return _atomic(Atom("e"))

    def _power(self, base: Node, exponent: Node) -> Rational:
        below, above = self.of(base), self.of(exponent)
        power = above.value()
        if power is not None and power.denominator == 1:
            if power == 0 and not below.above:
                raise Unreadable("zero to the power of zero")
            return to_the(below, int(power), self.work)
        root = below.value()
        if root is not None and power is not None and root > 0:
            return self._root_power(root, power)
        if root == 0:
            if power is not None and power > 0:
                return rational(Fraction(0))
            raise Unreadable("a power of zero")
        if root == 1:
            return rational(Fraction(1))
        return self._opaque("pow", below, above)

    def _root_power(self, base: Fraction, power: Fraction) -> Rational:
        """`base ** (p/q)` = (a·b^(q-1))^(1/q) / b to the p, so that only roots of integers are atoms."""
        above, below = base.numerator, base.denominator
        degree = power.denominator
        if degree > 64 or bits(base) * degree > MAX_BITS:
            raise TooMuch("a root of too high a degree")
        root = times(
            self._integer_root(above * below ** (degree - 1), degree), rational(Fraction(1, below)), self.work
        )
        return to_the(root, power.numerator, self.work)

    def _integer_root(self, radicand: int, degree: int) -> Rational:
        """Powers of primes below 1000 and perfect powers come out of the root."""
        outside, inside = 1, radicand
        self.work.spend(170)
        for prime in range(2, 1000):
            step = prime**degree
            if step > inside:
                break
            while inside % step == 0:
                inside //= step
                outside *= prime
        whole = _whole_root(inside, degree)
        if whole is not None:
            return rational(Fraction(outside * whole))
        for divisor in (2, 3, 5, 7):
            while (
                degree % divisor == 0
                and degree > divisor
                and (smaller := _whole_root(inside, divisor)) is not None
            ):
                inside, degree = smaller, degree // divisor
        return times(
            rational(Fraction(outside)), _atomic(Atom(f"root{degree}({inside})", degree, inside)), self.work
        )

    def _call(self, name: str, arguments: tuple[Node, ...]) -> Rational:
        values = [self.of(argument) for argument in arguments]
        first, number = values[0], values[0].value()
        if name == "root":
            return self._root(first, values[1])
        if name == "factorial" and number is not None:
            return rational(Fraction(math.factorial(_small(number, "a factorial"))))
        if name == "binomial" and all(value.value() is not None for value in values):
            n, k = (_small(value.value() or Fraction(0), "a binomial coefficient") for value in values)
            return rational(Fraction(math.comb(n, k)))
        if number is not None and name in ("abs", "floor", "ceil"):
            whole = math.floor(number) if name == "floor" else math.ceil(number)
            return rational(abs(number) if name == "abs" else Fraction(whole))
        if name == "log" and number is not None and (base := values[1].value()) is not None:
            return self._logarithm(number, base, values)
        if name == "ln" and number == 1:
            return rational(Fraction(0))
        if name in ("ln", "log") and number == 0:
            raise Unreadable("a logarithm of zero")
        if name in _ODD or name in _EVEN:
            return self._signed(name, first)
        return self._opaque(name, *values)

    def _root(self, value: Rational, degree: Rational) -> Rational:
        n, number = degree.value(), value.value()
        if n is None or n.denominator != 1 or n < 1:
            if n is not None:
                raise Unreadable("a root whose degree is no positive integer")
            return self._opaque("root", value, degree)
        if n == 1 or number == 0:
            return value
        if number is None:
            return self._opaque("root", value, degree)
        if number > 0:
            return self._root_power(number, 1 / n)
        positive = self._root_power(-number, 1 / n)
        if n % 2:
            return Rational(scaled(positive.above, Fraction(-1), self.work), positive.below)
        return (
            times(positive, _atomic(IMAGINARY), self.work) if n == 2 else self._opaque("root", value, degree)
        )

    def _logarithm(self, number: Fraction, base: Fraction, values: list[Rational]) -> Rational:
        """Exact where the number is a whole power of the base, or of its root."""
        if number <= 0 or base <= 0 or base == 1:
            raise Unreadable("a logarithm of or to the base of a number that is not positive")
        if number == 1:
            return rational(Fraction(0))
        bits_each = (
            math.log2(base)
            if base.denominator == 1
            else math.log2(base.numerator) - math.log2(base.denominator)
        )
        guess = round(
            (math.log2(number.numerator) - math.log2(number.denominator)) / bits_each * 12
        )  # twelfths: halves, thirds, quarters and sixths are all among them
        if abs(guess) <= 12 * 1024 and base ** abs(guess) == (number if guess > 0 else 1 / number) ** 12:
            return rational(Fraction(guess, 12))
        return self._opaque("log", *values)

    def _signed(self, name: str, argument: Rational) -> Rational:
        """`f(-x)` is `f(x)` or `-f(x)`: the argument's first coefficient is made positive."""
        if not argument.above:
            return self._opaque(name, argument)
        if argument.above[min(argument.above)] > 0:
            return self._opaque(name, argument)
        flipped = self._opaque(
            name, Rational(scaled(argument.above, Fraction(-1), self.work), argument.below)
        )
        if name in _EVEN:
            return flipped
        return Rational(scaled(flipped.above, Fraction(-1), self.work), flipped.below)

    def _opaque(self, name: str, *values: Rational) -> Rational:
        key = f"{name}[{','.join(value.key() for value in values)}]"
        self.work.spend(len(key) // 32)
        if len(key) > 20_000:
            raise TooMuch("a function of too large an argument")
        return _atomic(Atom(key))


def _atomic(atom: Atom) -> Rational:
    return Rational(of_atom(atom), UNIT)


def _small(value: Fraction, what: str) -> int:
    if value.denominator != 1 or value < 0:
        raise Unreadable(f"{what} of what is no natural number")
    if value > _MAX_FACTORIAL:
        raise TooMuch(f"{what} of a number over {_MAX_FACTORIAL}")
    return int(value)


def _whole_root(value: int, degree: int) -> int | None:
    """The exact `degree`-th root, or None. Newton's method on integers."""
    if value < 2:
        return value
    guess = 1 << -(-value.bit_length() // degree)
    while True:
        better = ((degree - 1) * guess + value // guess ** (degree - 1)) // degree
        if better >= guess:
            break
        guess = better
    return guess if guess**degree == value else None
