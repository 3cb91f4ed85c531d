"""Sets of reals as ordered, disjoint pieces.

Invariant: `joined` gives the one form of a set (no two pieces touch), so equal sets have equal pieces, up to how
their ends are written.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from shared.verification.comparators.formula.limits import Unreadable, Work
from shared.verification.comparators.formula.nodes import names_of
from shared.verification.comparators.formula.numeric import approximate
from shared.verification.comparators.formula.values import Bound, Infinite, Piece, Scalar, Value

_STEP = 10**30
"""Irrational ends are ordered by 30 decimals; whether two are equal is decided by their formulas."""
BELOW_ALL, ABOVE_ALL = Bound(-1, Fraction(0)), Bound(1, Fraction(0))
REALS = (Piece(BELOW_ALL, False, ABOVE_ALL, False),)


def bound_of(value: Value, work: Work) -> Bound | None:
    """None for what is no real number."""
    if isinstance(value, Infinite):
        return BELOW_ALL if value.negative else ABOVE_ALL
    if not isinstance(value, Scalar) or names_of(value.node):
        return None
    if value.number is not None:
        return Bound(0, value.number, value)
    near = approximate(value.node, work)
    return None if near is None else Bound(0, Fraction(round(near * _STEP), _STEP), value)


def interval(low: Bound, low_in: bool, high: Bound, high_in: bool) -> tuple[Piece, ...]:
    """Raises `Unreadable` for one that ends before it begins, or that holds infinity."""
    if _place(low) > _place(high):
        raise Unreadable("an interval that ends before it begins")
    if (low.side and low_in) or (high.side and high_in):
        raise Unreadable("an interval that is closed at infinity")
    piece = Piece(low, low_in, high, high_in)
    return () if _empty(piece) else (piece,)


def point(bound: Bound) -> tuple[Piece, ...]:
    return interval(bound, True, bound, True)


def joined(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The union."""
    out: list[Piece] = []
    for piece in sorted(pieces, key=lambda p: (_place(p.low), not p.low_in)):
        last = out[-1] if out else None
        if last is None or not _touch(last, piece):
            out.append(piece)
        elif (_place(piece.high), piece.high_in) > (_place(last.high), last.high_in):
            out[-1] = Piece(last.low, last.low_in, piece.high, piece.high_in)
    return tuple(out)


def common(left: Iterable[Piece], right: Iterable[Piece]) -> tuple[Piece, ...]:
    """The intersection."""
    out = []
    others = tuple(right)
    for a in left:
        for b in others:
            low = max((a.low, a.low_in), (b.low, b.low_in), key=lambda end: (_place(end[0]), not end[1]))
            high = min((a.high, a.high_in), (b.high, b.high_in), key=lambda end: (_place(end[0]), end[1]))
            piece = Piece(*low, *high)
            if _place(piece.low) <= _place(piece.high) and not _empty(piece):
                out.append(piece)
    return joined(out)


def outside(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The complement in ℝ."""
    out = []
    low, low_in = BELOW_ALL, False
    for piece in joined(pieces):
        gap = Piece(low, low_in, piece.low, not piece.low_in and not piece.low.side)
        if _place(gap.low) <= _place(gap.high) and not _empty(gap):
            out.append(gap)
        low, low_in = piece.high, not piece.high_in and not piece.high.side
    gap = Piece(low, low_in, ABOVE_ALL, False)
    return (*out, *(() if _empty(gap) else (gap,)))


def _place(bound: Bound) -> tuple[int, Fraction]:
    return (bound.side, bound.position)


def _empty(piece: Piece) -> bool:
    return _place(piece.low) == _place(piece.high) and not (piece.low_in and piece.high_in)


def _touch(left: Piece, right: Piece) -> bool:
    """Where nothing lies between them, given that `left` begins first."""
    ends, begins = _place(left.high), _place(right.low)
    return begins < ends or (begins == ends and (left.high_in or right.low_in))
