"""Two tables of typed cells, compared as a sequence, a bag or a set of rows.

Invariant: symmetric; NULL equals NULL only; text equals no number; an integer equals a real of the same value, and two
reals are equal within a relative tolerance. No cell equals everything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

Cell = tuple[str, Any]
Row = tuple[Cell, ...]
Arrangement = Literal["sequence", "bag", "set"]
_MAX_MATCHED = 500


def cell_of(value: Any) -> Cell:
    """The typed cell of a JSON value. Raises `ValueError` for what no database holds."""
    if value is None:
        return "null", None
    if isinstance(value, bool):
        return "integer", int(value)
    if isinstance(value, int):
        return "integer", value
    if isinstance(value, float):
        return "real", value
    if isinstance(value, str):
        return "text", value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return "blob", value
    raise ValueError(f"a cell is of type {type(value).__name__}: give null, a number, a text")


def same_rows(arrangement: Arrangement, left: Sequence[Row], right: Sequence[Row], tolerance: float) -> bool:
    """Whether two tables hold the same rows."""
    if arrangement == "sequence":
        return _pairwise(left, right, tolerance)
    first, second = sorted(left, key=_order), sorted(right, key=_order)
    if arrangement == "set":
        first, second = _distinct(first, tolerance), _distinct(second, tolerance)
    if _pairwise(first, second, tolerance):
        return True
    return len(first) == len(second) <= _MAX_MATCHED and _matched(first, second, tolerance)


def _matched(left: Sequence[Row], right: Sequence[Row], tolerance: float) -> bool:
    """Row by row, for reals that a sort put in another order on the two sides."""
    rest = list(right)
    for row in left:
        place = next((at for at, other in enumerate(rest) if _same(row, other, tolerance)), None)
        if place is None:
            return False
        del rest[place]
    return True


def _pairwise(left: Sequence[Row], right: Sequence[Row], tolerance: float) -> bool:
    return len(left) == len(right) and all(_same(a, b, tolerance) for a, b in zip(left, right, strict=True))


def _distinct(rows: Sequence[Row], tolerance: float) -> list[Row]:
    kept: list[Row] = []
    for row in rows:
        if not kept or not _same(kept[-1], row, tolerance):
            kept.append(row)
    return kept


def _same(left: Row, right: Row, tolerance: float) -> bool:
    return len(left) == len(right) and all(_equal(a, b, tolerance) for a, b in zip(left, right, strict=True))


def _equal(left: Cell, right: Cell, tolerance: float) -> bool:
    numbers = ("integer", "real")
    if left[0] in numbers and right[0] in numbers:
        if left[0] == right[0] == "integer":
            return bool(left[1] == right[1])
        return _close(left[1], right[1], tolerance)
    return left[0] == right[0] and left[1] == right[1]


def _close(left: float, right: float, tolerance: float) -> bool:
    if left == right:
        return True
    try:
        return math.isclose(left, right, rel_tol=tolerance)
    except OverflowError:
        return False


def _order(row: Row) -> tuple[Any, ...]:
    """Texts and NULLs first, then numbers by six digits, so that close ones mostly stand alike on both sides."""
    exact = tuple(_rank(cell) if cell[0] not in ("integer", "real") else (9, 0) for cell in row)
    numbers = [cell[1] for cell in row if cell[0] in ("integer", "real")]
    return len(row), exact, tuple(map(_rough, numbers)), tuple(map(_plain, numbers))


def _rank(cell: Cell) -> tuple[int, Any]:
    kind, value = cell
    return ("null", "text", "blob").index(kind), b"" if value is None else value


def _plain(value: float) -> float:
    return 0.0 if isinstance(value, float) and math.isnan(value) else value


def _rough(value: float) -> float:
    try:
        number = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return float(f"{number:.6g}") if math.isfinite(number) else _plain(number)
