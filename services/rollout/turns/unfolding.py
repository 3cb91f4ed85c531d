"""Text out of tokens, as they come.

Invariant: the pieces joined are the text of all tokens; a character whose bytes are spread over several tokens is given
once it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_UNFINISHED = "\ufffd"
_CONTEXT = 8
"""Tokens decoded again in front of new ones: some tokenizers write a token's space by what stands before it."""
_MOST_HELD = 16
"""Tokens held back for one character; bytes that are none at all are then given as they decode."""


class Unfolding:
    """`decode` gives the text of ids."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._given = 0
        """Tokens whose text was given."""

    def add(self, token: int) -> str:
        """The text that is new with it; empty inside a character."""
        self._ids.append(token)
        start = max(0, self._given - _CONTEXT)
        before = self._decode(self._ids[start : self._given])
        after = self._decode(self._ids[start:])
        held = len(self._ids) - self._given
        if after.endswith(_UNFINISHED) and held < _MOST_HELD:
            return ""
        self._given = len(self._ids)
        return after[len(before) :]

    def rest(self) -> str:
        """What was held back, at the end."""
        start = max(0, self._given - _CONTEXT)
        before = self._decode(self._ids[start : self._given])
        after = self._decode(self._ids[start:])
        self._given = len(self._ids)
        return after[len(before) :]
