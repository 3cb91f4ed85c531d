"""One query on one hidden database, in a jail of its own.

Invariant: the query can read tables and nothing else: no write, no other file, no pragma, no extension, one statement.
Work is counted in steps of SQLite's virtual machine, so a budget is the same on every machine; no one step takes long,
for texts and patterns are short and a format says no width of millions.

Frame in: `T` (setup script, database image or None, query, steps, rows). Frame out: `F` (outcome, column names, rows, events).
Outcomes: `rows`, `error` (the name of what SQLite raised), `denied`, `budget`, `too_many`, `setup`,
`nothing` (no statement).
"""

from __future__ import annotations

import os
import re
import sqlite3
from typing import Any

from shared.verification.guest.channel import Channel, Closed
from shared.verification.guest.codec import Decoder, Encoder, TooLarge

START, FINISHED = b"T", b"F"
MAX_RESULT = 2 << 20
"""Bytes of a result, which the other side decodes itself."""
_STRIDE = 1000
_MAX_TEXT = 1 << 18
"""Bytes of a text, blob or row. `instr` of two texts of this size takes 0.05 s in one step; of 1 MiB, 0.7 s."""
_MAX_PATTERN = 1000
_WIDE = re.compile(r"%[^%A-Za-z]*(?:\*|[0-9]{5})")
"""`printf('%.*c', 900000000, 'x')` is one step of 3 s. (SQLite 3.40)"""
_READING = {
    sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE,
}  # fmt: skip
_FUNCTIONS = frozenset(
    ("load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "randomblob", "random")
)


def main() -> None:
    channel = Channel()
    try:
        kind, payload = channel.receive()
        if kind == START:
            channel.send(FINISHED, _encoded(_answer(*Decoder().decode(payload))))
            channel.receive()
    except Closed:
        pass
    os._exit(0)


def _encoded(found: tuple[Any, ...]) -> bytes:
    try:
        data = Encoder().encode(found)
    except TooLarge:
        data = b""
    return data if 0 < len(data) <= MAX_RESULT else Encoder().encode(("too_many", [], [], found[3]))


class _Watch:
    """What the query asks for, and how long it takes."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.events: set[str] = set()

    def authorise(self, action: int, first: Any, second: Any, *rest: Any) -> int:
        if action == sqlite3.SQLITE_READ and first:
            self.events.add("catalogue" if str(first).startswith("sqlite_") else "table")
        if action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _FUNCTIONS:
            self.events.add("denied")
            return sqlite3.SQLITE_DENY
        if action in _READING:
            return sqlite3.SQLITE_OK
        self.events.add("attached" if action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH) else "denied")
        return sqlite3.SQLITE_DENY

    def tick(self) -> int:
        self.left -= _STRIDE
        return 1 if self.left < 0 else 0


def _answer(setup: str, image: bytes | None, query: str, steps: int, most: int) -> tuple[Any, ...]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        if image:
            connection.deserialize(image)
        connection.executescript(setup)
    except (sqlite3.Error, ValueError) as error:  # a lone surrogate is a `ValueError`
        return "setup", [], [], [type(error).__name__]
    watch = _Watch(steps)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_TEXT)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _MAX_PATTERN)
    _narrow_formats(connection)
    connection.set_authorizer(watch.authorise)
    connection.set_progress_handler(watch.tick, _STRIDE)
    connection.text_factory = _Text  # a text need not be UTF-8
    names, rows, outcome = _rows(connection, query, watch, most)
    return outcome, names, rows, sorted(watch.events)


def _narrow_formats(connection: sqlite3.Connection) -> None:
    """`printf` and `format` as they are, but for a width by `*` or of over four digits, which is an error."""
    own = sqlite3.connect(":memory:", isolation_level=None)
    own.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_TEXT)

    def formatted(*arguments: Any) -> Any:
        pattern = arguments[0] if arguments else ""
        if _WIDE.search(pattern.decode("latin-1") if isinstance(pattern, bytes) else str(pattern)):
            raise ValueError("a width by `*`, or of over four digits")
        return own.execute(f"select printf({','.join('?' * len(arguments))})", arguments).fetchone()[0]

    for name in ("printf", "format"):
        connection.create_function(name, -1, formatted, deterministic=True)


def _rows(
    connection: sqlite3.Connection, query: str, watch: _Watch, most: int
) -> tuple[list[str], list[Any], str]:
    try:
        cursor = connection.execute(query)
        rows = [tuple(map(_cell, row)) for row in cursor.fetchmany(most + 1)]
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        if watch.left < 0:
            return [], [], "budget"
        if watch.events & {"denied", "attached"}:
            return [], [], "denied"
        return [type(error).__name__], [], "error"
    if cursor.description is None:
        return [], [], "nothing"
    names = [str(column[0]) for column in cursor.description]
    return names, rows, "too_many" if len(rows) > most else "rows"


class _Text(bytes):
    """Text as SQLite holds it; a blob comes as `bytes`."""


def _cell(value: Any) -> tuple[str, Any]:
    """A kind and a value."""
    if value is None:
        return "null", None
    if isinstance(value, int):
        return "integer", value
    if isinstance(value, float):
        return "real", value
    return ("text" if isinstance(value, _Text) else "blob"), bytes(value)
