r"""The last resort: are two formulas the same number, or the same function at drawn points?

Invariant: a pure function of the two formulas and a seed, of bounded work; symmetric; "equal" is said only where the
difference vanishes to 20 digits more than the smallest quantity that either formula contains, and "undecided" where
that would take more precision than allowed. So e^{π√163} is no integer, and 1 + 10^{-90} is not sin² + cos².

Complex arithmetic by mpmath with the principal branches, save that odd roots of negative numbers are real.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from shared.errors import VerificationFault
from shared.verification.comparators.formula.limits import TooMuch, Work
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
    names_of,
)

Outcome = Literal["equal", "different", "undecided"]
_FIRST_DIGITS = 50
_MARGIN = 20
_MAX_DIGITS = 1600
_STEPS = (_FIRST_DIGITS, 100, 200, 400, 800, _MAX_DIGITS)
_MAX_MAGNITUDE = 600
"""Decimal digits of any intermediate value, on either side of the point."""
_POINTS = 4
_PREPARING = 20
"""Units of work for what is done before the first point."""
_PLAIN = ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")
_INVERSE = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsinh": "asinh", "arccosh": "acosh",
            "arctanh": "atanh"}  # fmt: skip


class _NoValue(Exception):
    """Not defined at this point."""


def identical(left: Node, right: Node, work: Work) -> Outcome:
    """Raises `TooMuch` past the work, `VerificationFault` where mpmath is not installed."""
    work.spend(_PREPARING)
    names = sorted(names_of(left) | names_of(right))
    seed = "|".join(sorted((repr(left), repr(right))))
    agreed = 0
    for index in range(_POINTS if names else 1):
        point = {name: _drawn(seed, name, index) for name in names}
        outcome = _at(left, right, point, work)
        if outcome in ("different", "undecided"):
            return outcome
        agreed += outcome == "equal"
    return "equal" if agreed >= (2 if names else 1) else "undecided"


def approximate(node: Node, work: Work) -> Fraction | None:
    """A real constant to 40 digits; None where it is complex, undefined or has variables."""
    meter = _Meter(_FIRST_DIGITS, work)
    try:
        value = meter.of(node, {})
    except (_NoValue, ZeroDivisionError, ValueError, OverflowError):
        return None
    context = meter.context
    if abs(context.im(value)) > context.mpf(10) ** -40 * (1 + abs(value)):
        return None
    return _fraction(context.re(value))


def _at(left: Node, right: Node, point: Mapping[str, Fraction], work: Work) -> Outcome | Literal["skipped"]:
    digits = _FIRST_DIGITS
    for _ in range(2):
        meter = _Meter(digits, work)
        try:
            first, second = meter.of(left, point), meter.of(right, point)
        except (_NoValue, ZeroDivisionError, ValueError, OverflowError):
            return "skipped"
        apart = meter.magnitude(first - second)
        if apart > meter.high - digits + _MARGIN // 2:
            return "different"
        needed = meter.high - meter.low + 2 * _MARGIN
        if digits >= needed:
            return "equal"
        if needed + _MARGIN > _MAX_DIGITS:
            return "undecided"
        digits = next(step for step in _STEPS if step >= needed + _MARGIN)
    return "equal"


def _drawn(seed: str, name: str, index: int) -> Fraction:
    """Between 1/4 and 9/4, every other point negative, from a hash of what is compared."""
    digest = hashlib.sha256(f"{index}|{name}|{seed}".encode("utf-8", "backslashreplace")).digest()
    size = Fraction(1, 4) + 2 * Fraction(int.from_bytes(digest[:5], "big"), 1 << 40)
    return -size if index % 2 and digest[5] % 2 else size


def _fraction(value: Any) -> Fraction:
    sign, mantissa, exponent, _ = value._mpf_
    return Fraction((-1) ** sign * int(mantissa)) * Fraction(2) ** int(exponent)


class _Meter:
    """Evaluates at one precision and remembers the largest and smallest magnitudes it met, as powers of ten."""

    def __init__(self, digits: int, work: Work) -> None:
        self.context = _context(digits, threading.get_ident())
        self.high = 0
        self.low = 0
        self._price = 1 + digits // 100
        self._work = work

    def magnitude(self, value: Any) -> int:
        """floor-ish log10; -10^9 for zero."""
        if not value:
            return -(10**9)
        return int(self.context.mag(value) * 0.30103)

    def of(self, node: Node, point: Mapping[str, Fraction]) -> Any:
        self._work.spend(self._price)
        value = self._value(node, point)
        if not self.context.isfinite(value):
            raise _NoValue
        size = self.magnitude(value)
        if size > _MAX_MAGNITUDE:
            raise TooMuch("an intermediate value beyond what is compared")
        self.high = max(self.high, size)
        if value and not isinstance(node, Sum):
            self.low = min(self.low, max(size, -_MAX_DIGITS))
        return value

    def _value(self, node: Node, point: Mapping[str, Fraction]) -> Any:
        context = self.context
        match node:
            case Number(value):
                return _ratio(context, value)
            case Name(text):
                return _ratio(context, point[text])
            case Constant(name):
                return _constant(context, name)
            case Sum(terms):
                return context.fsum(self.of(term, point) for term in terms)
            case Product(factors):
                return context.fprod(self.of(factor, point) for factor in factors)
            case Quotient(above, below):
                return self.of(above, point) / self._not_zero(self.of(below, point))
            case Power(base, exponent):
                return self._power(self.of(base, point), self.of(exponent, point))
            case Call(name, arguments):
                return self._call(name, [self.of(argument, point) for argument in arguments])
        raise _NoValue

    def _not_zero(self, value: Any) -> Any:
        if self.magnitude(value) < self.high - self.context.dps + _MARGIN:
            raise _NoValue
        return value

    def _power(self, base: Any, exponent: Any) -> Any:
        if not base:
            if self.context.re(exponent) > 0:
                return base
            raise _NoValue
        if abs(exponent) * (abs(self.context.mag(base)) + 7) > _MAX_MAGNITUDE * 4:
            raise TooMuch("a power beyond what is compared")
        return base**exponent

    def _call(self, name: str, values: list[Any]) -> Any:
        context, value = self.context, values[0]
        if self.magnitude(value) > 40:
            raise TooMuch("a function of too large a value")
        match name:
            case "ln":
                return context.log(self._not_zero(value))
            case "log":
                return context.log(self._not_zero(value)) / self._not_zero(
                    context.log(self._not_zero(values[1]))
                )
            case "root":
                return self._root(value, values[1])
            case "abs":
                return abs(value)
            case "floor" | "ceil":
                return self._rounded(name, value)
            case "factorial" | "binomial":
                return self._gamma(name, values)
        if name in _INVERSE:
            return getattr(context, _INVERSE[name])(value)
        if name in ("sinh", "cosh", "tanh") and abs(value) > _MAX_MAGNITUDE:
            raise TooMuch("a function of too large a value")
        if name in _PLAIN:
            return getattr(context, name)(value)
        raise _NoValue

    def _root(self, value: Any, degree: Any) -> Any:
        context = self.context
        if not value:
            return value
        real = not context.im(value) and not context.im(degree)
        if real and value < 0 and context.isint(degree) and int(degree) % 2:
            return -self._power(-value, 1 / degree)
        return self._power(value, 1 / self._not_zero(degree))

    def _rounded(self, name: str, value: Any) -> Any:
        context = self.context
        if context.im(value):
            raise _NoValue
        nearest = context.nint(value)
        if abs(value - nearest) < context.mpf(10) ** -(context.dps // 2):
            return nearest
        return context.floor(value) if name == "floor" else context.ceil(value)

    def _gamma(self, name: str, values: list[Any]) -> Any:
        if any(abs(value) > 200 for value in values):
            raise TooMuch("a factorial beyond what is compared")
        return self.context.factorial(values[0]) if name == "factorial" else self.context.binomial(*values)


@lru_cache(maxsize=16)
def _context(digits: int, thread: int) -> Any:
    """Made once for each step of precision, since that takes a millisecond; mpmath's contexts are not thread-safe."""
    try:
        from mpmath.ctx_mp import MPContext  # here, so that exact types need no library
    except ImportError as error:
        raise VerificationFault(
            "comparing formulas numerically needs mpmath: install temper-rl[verifier]"
        ) from error
    context = MPContext()
    context.dps = digits
    return context


def _ratio(context: Any, value: Fraction) -> Any:
    return context.mpf(value.numerator) / value.denominator


def _constant(context: Any, name: str) -> Any:
    match name:
        case "pi":
            return +context.pi
        case "e":
            return +context.e
        case "i":
            return context.mpc(0, 1)
        case "degree":
            return context.pi / 180
        case "percent":
            return context.mpf(1) / 100
    raise _NoValue
