"""A place in the tokens.

Invariant: it only moves forward (there is no trying again, so parsing is linear), and nesting is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

from shared.verification.comparators.formula.limits import MAX_DEPTH, SyntaxFault, Unreadable
from shared.verification.comparators.formula.tokens import Token


class Cursor:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    @property
    def next(self) -> Token:
        return self._tokens[self._at]

    @property
    def after(self) -> Token:
        """The token behind the next one."""
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def take(self) -> Token:
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def at(self, *symbols: str) -> bool:
        return self.next.kind == "symbol" and self.next.text in symbols

    def take_if(self, *symbols: str) -> Token | None:
        return self.take() if self.at(*symbols) else None

    def expect(self, *symbols: str) -> Token:
        if not self.at(*symbols):
            raise SyntaxFault(f"{symbols[0]!r} is missing before {self.where()}")
        return self.take()

    def last_symbol(self, *symbols: str) -> bool:
        """Whether the token taken last is one of these."""
        token = self._tokens[self._at - 1]
        return self._at > 0 and token.kind == "symbol" and token.text in symbols

    def where(self) -> str:
        """The next token in words, printable."""
        token = self.next
        return "the end" if token.kind == "end" else ascii(token.text[:20] or str(token.value)[:20])

    def definition_follows(self) -> bool:
        """Whether `(x) =` comes next, as in `P(A) = 1/3`: the name before it is then a function."""
        following = self._tokens[self._at : self._at + 4]
        texts = [token.text for token in following]
        return (
            len(following) == 4
            and (texts[0], texts[2], texts[3]) == ("(", ")", "=")
            and following[1].kind in ("name", "text", "number")
        )

    def first_digit(self) -> Token | None:
        r"""The first digit of a plain number, as TeX reads `\frac12`; the rest of it stays."""
        token = self.next
        if token.kind != "number" or not token.plain or len(token.text) < 2:
            return None
        rest = token.text[1:]
        self._tokens[self._at] = Token("number", rest, False, Fraction(int(rest)), True)
        return Token("number", token.text[0], token.spaced, Fraction(int(token.text[0])), True)

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Raises `Unreadable` past the limit."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable(f"a formula nested over {MAX_DEPTH} deep")
        yield
        self._depth -= 1
