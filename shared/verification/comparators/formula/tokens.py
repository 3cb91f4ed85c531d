"""From source to tokens.

Invariant: one pass, one pattern, no look-behind over more than a token; numbers become exact fractions here, with
their digits and exponents limited, and letters become names, functions, units or words by declared tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from shared.verification.comparators.formula.limits import (
    MAX_DIGITS,
    MAX_EXPONENT,
    MAX_TOKENS,
    SyntaxFault,
    Unreadable,
)
from shared.verification.comparators.formula.spelling import COMMANDS, FUNCTIONS, split_letters

Kind = Literal["number", "name", "constant", "function", "unit", "word", "text", "symbol", "end"]


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str
    spaced: bool = False
    """A blank stands before it."""
    value: Fraction = Fraction(0)
    plain: bool = False
    """An integer written in digits alone."""


_TOKEN = re.compile(
    r"""(?P<matrix>\\begin\s*\{(?:[pbBv]?matrix|smallmatrix|array)\}(?:\s*\{[lcr| ]*\})?)
    |(?P<endmatrix>\\end\s*\{(?:[pbBv]?matrix|smallmatrix|array)\})
    |\\(?P<accent>vec|hat|bar|overline|tilde|widehat|overrightarrow|angle|triangle|mathbf|boldsymbol|mathcal)
        (?:(?<=angle)\s*(?P<corners>[A-Z]{1,4})(?![A-Za-z])|\s*\{\s*(?P<accented>(?<!mathbf\{)(?<!boldsymbol\{)[A-Za-z]{1,3}|[a-z])\s*\})
    |\\(?:text(?:bf|it|rm|tt|sf|normal)?|mathrm|mathsf|mathit|mathbf|boldsymbol|mbox|operatorname|unit|bf|rm)(?![a-zA-Z])\s*
        \{(?P<text>[^{}]*)\}
    |\\(?:mathbb|mathbf|Bbb)\s*(?:\{\s*(?P<set>[RZNQC])\s*\}|(?P<bare_set>[RZNQC]))
    |(?P<newline>\\\\(?:\[[^\]\[]{0,10}\])?)
    |\\(?P<command>[a-zA-Z]+|[^a-zA-Z])
    |(?P<based>(?:[0-9][0-9A-F]*|[A-F]+[0-9][0-9A-F]*|[A-F]{2,})_(?:\{\s*(?P<base>[0-9]{1,2})\s*\}|(?P<bare_base>[0-9]{1,2})(?![0-9])))
    |(?P<repeating>(?P<whole>[0-9]*)\.(?P<fixed>[0-9]*)(?:\\(?:overline|bar|dot)\s*(?:\{\s*(?P<period>[0-9]+)\s*\}|(?P<digit>[0-9]))|\((?P<round>[0-9]+)\)))
    |(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?P<dots>\s*(?:\.\.\.|\\(?:ldots|dots|cdots)(?![a-zA-Z])))?(?P<exponent>[eE][+-]?[0-9]+)?
    |(?P<letters>[A-Za-z]+)
    |(?P<operator>\*\*|<=|>=|==|!=|/=|=<|=>|[-+*/^_()\[\]{}|,;:!%=<>&'])""",
    re.VERBOSE,
)
_BLANKS = re.compile(r"\s*")
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])")
_OPERATORS = {"**": "^", "==": "=", "!=": "!=", "/=": "!=", "=<": "<=", "=>": ">="}
_OPENING, _CLOSING = frozenset(("(", "[", "set{")), frozenset((")", "]", "set}"))


class Tokenizer:
    """Of one source; use `tokens()` once."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._out: list[Token] = []
        self._depth = 0
        self._braces: list[bool] = []
        """For each open `{`, whether it counts as a bracket in which a comma always separates."""

    def tokens(self) -> list[Token]:
        """Raises `SyntaxFault` for what is no formula, `Unreadable` for what is too large."""
        position, end = 0, len(self._source)
        while True:
            blank = _BLANKS.match(self._source, position)
            spaced = blank is not None and blank.end() > position
            position = blank.end() if blank else position
            if position >= end:
                self._out.append(Token("end", ""))
                return self._out
            position = self._take(position, spaced)
            if len(self._out) > MAX_TOKENS:
                raise Unreadable(f"a formula of over {MAX_TOKENS} parts")

    def _take(self, position: int, spaced: bool) -> int:
        if self._depth == 0 and (grouped := _GROUPED.match(self._source, position)):
            return self._grouped(grouped, spaced)
        found = _TOKEN.match(self._source, position)
        if found is None:
            raise SyntaxFault(f"{self._source[position]!a} has no meaning in a formula")
        if found["based"] is not None:
            self._number(_based(found["based"], int(found["base"] or found["bare_base"])), spaced)
        elif found["repeating"] is not None:
            period = found["period"] or found["digit"] or found["round"]
            self._number(_repeating(found["whole"], found["fixed"], period), spaced)
        elif found["number"] is not None:
            self._literal(found, spaced)
        elif found["accent"]:
            self._out.append(
                Token("name", f"{found['accent']} {found['corners'] or found['accented']}", spaced)
            )
        elif found["letters"] is not None:
            self._out += split_tokens(found["letters"], spaced)
        else:
            self._other(found, spaced)
        return found.end()

    def _grouped(self, grouped: re.Match[str], spaced: bool) -> int:
        """`1,234,567`, and the decimals after it."""
        end = grouped.end()
        part = re.compile(r"\.[0-9]+").match(self._source, end)
        text = grouped[0].replace(",", "") + (part[0] if part else "")
        self._out.append(Token("number", text, spaced, decimal(text), part is None))
        return part.end() if part else end

    def _literal(self, found: re.Match[str], spaced: bool) -> None:
        text = found["number"]
        if found["dots"]:
            self._number(_continued(text), spaced)
            return
        exponent = int(found["exponent"][1:][:6]) if found["exponent"] else 0
        if abs(exponent) > MAX_EXPONENT or len(found["exponent"] or "") > 7:
            raise Unreadable(f"an exponent beyond {MAX_EXPONENT}")
        value = decimal(text) * Fraction(10) ** exponent
        self._out.append(Token("number", text, spaced, value, not found["exponent"] and text.isdigit()))

    def _number(self, value: Fraction, spaced: bool) -> None:
        self._out.append(Token("number", "", spaced, value))

    def _other(self, found: re.Match[str], spaced: bool) -> None:
        if found["matrix"]:
            kind = "vmatrix" if "{vmatrix}" in found["matrix"].replace(" ", "") else "matrix"
            self._symbol(kind, spaced)
        elif found["endmatrix"]:
            self._symbol("endmatrix", spaced)
        elif found["text"] is not None:
            self._out.append(Token("text", " ".join(found["text"].split()), spaced))
        elif found["set"] or found["bare_set"]:
            self._symbol("set:" + (found["set"] or found["bare_set"]), spaced)
        elif found["newline"]:
            self._symbol("newline", spaced)
        elif found["command"]:
            self._command(found["command"], spaced)
        else:
            operator = found["operator"]
            self._symbol(_OPERATORS.get(operator, operator), spaced)

    def _command(self, name: str, spaced: bool) -> None:
        if name in FUNCTIONS:
            self._out.append(Token("function", FUNCTIONS[name], spaced))
            return
        known = COMMANDS.get(name)
        if known is None:
            raise SyntaxFault(f"the command {name[:20]!a} is not one that is read here")
        kind, text = known
        if kind == "symbol":
            self._symbol(text, spaced)
        else:
            self._out.append(Token(kind, text, spaced))

    def _symbol(self, text: str, spaced: bool) -> None:
        if text in _OPENING:
            self._depth += 1
        elif text in _CLOSING:
            self._depth = max(0, self._depth - 1)
        elif text == "{":
            last = self._out[-1] if self._out else Token("symbol", "")
            argument = (
                last.text in ("^", "_", "}", "frac", "tex_sqrt", "binom", "]") or last.kind == "function"
            )
            self._braces.append(not argument)
            self._depth += not argument
        elif text == "}" and self._braces:
            self._depth -= self._braces.pop()
        self._out.append(Token("symbol", text, spaced))


def split_tokens(letters: str, spaced: bool) -> list[Token]:
    out = []
    for kind, text in split_letters(letters):
        out.append(Token(kind, text, spaced))
        spaced = False
    return out


def decimal(text: str) -> Fraction:
    """Of `12`, `1.5`, `.5`, `1.`."""
    whole, _, part = text.partition(".")
    if len(whole) + len(part) > MAX_DIGITS:
        raise Unreadable(f"a number of over {MAX_DIGITS} digits")
    return Fraction(int((whole + part) or "0"), 10 ** len(part))


def _based(text: str, base: int) -> Fraction:
    digits = text.partition("_")[0]
    if not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits):
        raise SyntaxFault(f"{digits[:20]} is no number in base {base}")
    if len(digits) > MAX_DIGITS:
        raise Unreadable(f"a number of over {MAX_DIGITS} digits")
    return Fraction(int(digits, base))


def _repeating(whole: str, fixed: str, period: str) -> Fraction:
    if len(whole) + len(fixed) + len(period) > MAX_DIGITS:
        raise Unreadable(f"a number of over {MAX_DIGITS} digits")
    shift = 10 ** len(fixed)
    return Fraction(int((whole + fixed) or "0"), shift) + Fraction(
        int(period), shift * (10 ** len(period) - 1)
    )


def _continued(text: str) -> Fraction:
    """`0.333…`: a period written three times (twice where it is longer than one digit) and nothing after it."""
    whole, point, part = text.partition(".")
    if not point or len(part) > MAX_DIGITS:
        raise Unreadable("a number that goes on without saying how")
    for length in range(1, len(part) // 2 + 1):
        period, times = part[-length:], 3 if length == 1 else 2
        if part.endswith(period * times):
            start = len(part)
            while start >= length and part[start - length : start] == period:
                start -= length
            return _repeating(whole, part[:start], period)
    raise Unreadable("a number that goes on without saying how")
