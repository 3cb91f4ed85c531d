"""What a policy and its tools say, as a person's terminal takes it.

Invariant: what is printed moves no cursor and forges no line of ours: control characters are escaped, line ends and
tabs aside, and every line of a policy or a tool stands behind a bar.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from services.rollout.turns.unfolding import Unfolding
from shared.telemetry.text import one_line

BAR = "│ "


def harmless(text: str) -> str:
    """`text` with its lines, and without what else steers a terminal."""
    return "\n".join(one_line(line.replace("\t", "    ")) for line in text.split("\n"))


def barred(text: str) -> str:
    return "\n".join(BAR + line for line in harmless(text).split("\n"))


class Pen:
    """Text that comes piece by piece, each of its lines behind a bar."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._unfolding = Unfolding(decode)
        self._fresh = True

    def token(self, token: int) -> None:
        self._write(self._unfolding.add(token))

    def end(self) -> None:
        """Ends the line; the next token begins another text."""
        self._write(self._unfolding.rest())
        if not self._fresh:
            sys.stdout.write("\n")
        sys.stdout.flush()
        self._fresh, self._unfolding = True, Unfolding(self._decode)

    def _write(self, text: str) -> None:
        for piece in harmless(text).splitlines(keepends=True):
            sys.stdout.write((BAR if self._fresh else "") + piece)
            self._fresh = piece.endswith("\n")
        sys.stdout.flush()
