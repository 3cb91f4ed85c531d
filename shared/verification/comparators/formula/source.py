"""From an answer as typed to ASCII source: Unicode signs and LaTeX spellings become one spelling.

Invariant: the work is linear in a capped length, and no character is guessed: what has no meaning here stays as it
is for the tokenizer to refuse; direction overrides, control characters and surrogates are refused at once.
"""

from __future__ import annotations

import re
import unicodedata

from shared.verification.comparators.formula.limits import MAX_CHARS, Unreadable

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-", strict=True))
_SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "＋": "+", "×": "*", "·": "*", "∙": "*",
    "⋅": "*", "∗": "*", "⁎": "*", "÷": "/", "∕": "/", "⁄": "/", "／": "/", "≤": r"\le ", "≦": r"\le ", "⩽": r"\le ",
    "≥": r"\ge ", "≧": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ", "∞": r"\infty ", "π": r"\pi ", "√": r"\surd ",
    "∛": r"\cbrt ", "∪": r"\cup ", "∩": r"\cap ", "∖": r"\setminus ", "∅": r"\emptyset ", "⌀": r"\emptyset ",
    "∈": r"\in ", "°": r"\degree ", "º": r"\degree ", "±": r"\pm ", "∓": r"\mp ", "％": "%", "（": "(", "）": ")",
    "［": "[", "］": "]", "，": ",", "＝": "=", "＜": "<", "＞": ">", "．": ".", "：": ":", "∶": ":", "…": r"\ldots ",
    "ℝ": r"\R ", "ℤ": r"\Z ", "ℕ": r"\N ", "ℚ": r"\Q ", "ℂ": r"\C ", "⌊": r"\lfloor ", "⌋": r"\rfloor ",
    "⌈": r"\lceil ", "⌉": r"\rceil ", "∣": "|", "｜": "|", "ℯ": "e", "ⅈ": "i", "′": "'", "∧": r"\land ",
    "∨": r"\lor ", "¥": r"\yen ", "€": r"\euro ", "£": r"\pounds ", "＄": r"\$", "θ": r"\theta ", "φ": r"\phi ",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "λ": r"\lambda ", "μ": r"\mu ",
    "σ": r"\sigma ", "ω": r"\omega ", "τ": r"\tau ", "ε": r"\epsilon ", "ρ": r"\rho ", "Δ": r"\Delta ",
    "Ω": r"\Omega ", "µ": r"\mu ",
}  # fmt: skip
_DROPPED = frozenset("\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f\u061c\u2061\u2062\u2063\u2064")
_OVERRIDES = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

_COMMENTARY = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits)(?![a-zA-Z])\.?"
)
_FRACTIONS = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_DEGREE_BRACED = re.compile(r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![a-zA-Z])")
_TEMPERATURE = re.compile(r"\\degree\s*(?:\\(?:text|mathrm)\s*\{\s*([CF])\s*\}|([CF])(?![a-zA-Z]))")
_THIN_GROUP = re.compile(
    r"(?<=[0-9])(?:\\[,;:! ]|~|\{,\}|,\\!|\{\\,\}|[\u00a0\u2009\u202f])(?=[0-9]{3}(?![0-9]))"
)
_BLANK_GROUP = re.compile(r"(?<![0-9.,/^_ ])(?<![0-9] )[0-9]{1,3}(?: [0-9]{3})+(?![0-9])(?! ?[0-9/])")
_DECIMAL_COMMA = re.compile(r"(?<=[0-9])\{,\}(?=[0-9])")
_BRACED = re.compile(r"\{([,:;])\}")
_SPACES = re.compile(
    r"(?<!\\)\\[,;:!> ]|\\q?quad(?![a-zA-Z])|(?<=\S)~|\\hspace\{[^{}]*\}|\\phantom\{[^{}]*\}"
)
_BARRED = re.compile("((?:[0-9][\u0304\u0305])+)|([0-9])\u0307")
"""Digits under a combining bar or dot repeat."""
_TIMES_TEN = re.compile(r"(?<=[0-9])\s*[xX]\s*(?=10\s*\^)")
_DOLLAR = re.compile(r"(?<!\\)\$")


def plain_source(text: str) -> str:
    """Raises `Unreadable` with the reason."""
    if len(text) > MAX_CHARS:
        raise Unreadable(f"a formula of {len(text)} characters: the limit is {MAX_CHARS}")
    barred = _BARRED.sub(
        lambda found: rf"\overline{{{(found[1] or found[2])[:: 2 if found[1] else 1]}}}", text
    )
    source = _ascii_signs(_without_delimiters(barred))
    source = _COMMENTARY.sub(" ", source)
    source = _FRACTIONS.sub(r"\\frac", source)
    source = _DEGREE_BRACED.sub(r"\\degree ", source)
    source = _TEMPERATURE.sub(lambda found: r"\text{deg" + (found[1] or found[2]) + "}", source)
    source = _THIN_GROUP.sub("", source)
    source = _BLANK_GROUP.sub(lambda found: found[0].replace(" ", ""), source)
    source = _DECIMAL_COMMA.sub(".", source)
    source = _BRACED.sub(r"\1", source)
    source = _SPACES.sub(" ", source)
    return _TIMES_TEN.sub("*", source).strip()


def _without_delimiters(text: str) -> str:
    """Math delimiters become blanks. An odd single dollar sign is money."""
    for opening, closing in ((r"\(", r"\)"), (r"\[", r"\]")):
        if opening in text and closing in text:
            text = text.replace(opening, " ").replace(closing, " ")
    dollars = len(_DOLLAR.findall(text))
    if dollars and dollars % 2 == 0:
        return _DOLLAR.sub(" ", text)
    return _DOLLAR.sub(lambda _: r"\$", text) if dollars == 1 else text


def _ascii_signs(text: str) -> str:
    out: list[str] = []
    script = ""
    for character in text:
        kind = "^" if character in _SUPERSCRIPTS else "_" if character in _SUBSCRIPTS else ""
        if kind != script:
            out.append(("}" if script else "") + (kind + "{" if kind else ""))
            script = kind
        if kind:
            out.append((_SUPERSCRIPTS if kind == "^" else _SUBSCRIPTS)[character])
        else:
            out.append(_spelled(character))
    return "".join(out) + ("}" if script else "")


def _spelled(character: str) -> str:
    if character in _SIGNS:
        return _SIGNS[character]
    if character.isascii():
        if character.isprintable():
            return character
        if character in "\t\n\r\f\v":
            return " "
        raise Unreadable(f"a control character U+{ord(character):04X} in the answer")
    if character in _DROPPED or (unicodedata.category(character) == "Mn" and character in "\ufe0e\ufe0f"):
        return ""
    if character in _OVERRIDES or unicodedata.category(character) in ("Cc", "Cs", "Co", "Cn"):
        raise Unreadable(f"a character U+{ord(character):04X} that no answer holds")
    return _compatible(character)


def _compatible(character: str) -> str:
    """Decimal digits of every script, vulgar fractions (½) and mathematical letters, by their Unicode value."""
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    plain = unicodedata.normalize("NFKC", character)
    above, slash, below = plain.partition("⁄")
    if slash and above.isascii() and below.isascii() and above.isdigit() and below.isdigit():
        return rf"\frac{{{above}}}{{{below}}}"
    if character.isspace():
        return character if character in "\u00a0\u2009\u202f" else " "
    if len(plain) == 1 and plain.isascii() and plain.isalpha() and unicodedata.category(character)[0] == "L":
        return plain
    return _SIGNS.get(plain, character)
