"""Text that any terminal, JSON reader or collector takes.

Invariant: what comes out encodes as UTF-8. Lone surrogates and invalid bytes become backslash escapes, so that the
strangest answer of a policy can be logged and traced, and is still recognised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_DEEPEST = 8


def printable(value: str | bytes) -> str:
    """`value` as UTF-8 text; whatever does not encode or decode is a backslash escape."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value


def one_line(value: str) -> str:
    """`value` with control characters escaped: a policy's answer must not move the reader's cursor."""
    if value.isprintable():
        return value
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in value
    )


def plain(value: object, depth: int = 0) -> object:
    """`value` as JSON knows it, whatever it was: printable text, finite numbers, lists and tables; never raises."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str | bytes):
        return printable(value)
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return {printable(str(k)): plain(v, depth + 1) for k, v in value.items()}
        if isinstance(value, Sequence | set | frozenset):
            return [plain(item, depth + 1) for item in value]
    return _shown(value)


def _shown(value: object) -> str:
    try:
        return printable(str(value) if isinstance(value, BaseException) else repr(value))
    except Exception as error:  # noqa: BLE001 - somebody's __repr__ is broken: say so in its place
        return f"<{type(value).__name__}: repr raised {type(error).__name__}>"
