"""Which words and commands mean what.

Invariant: a run of letters is read in one way only: a keyword, a function, a unit, a product of one-letter names, or
a word; a word is no formula, so "no" is never n·o and "on" never equals it.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from shared.verification.comparators.formula.units import find_unit

Kind = Literal["name", "constant", "function", "unit", "word", "symbol", "number"]

FUNCTIONS: Final = {
    name: name
    for name in ("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln",
                 "log", "lg", "exp", "arcsinh", "arccosh", "arctanh")
} | {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "tg": "tan", "cosec": "csc"}  # fmt: skip
PLAIN_FUNCTIONS: Final = FUNCTIONS | {name: name for name in ("sqrt", "cbrt", "abs", "floor", "ceil")}

_GREEK = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu",
          "xi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda",
          "Xi", "Sigma", "Phi", "Psi", "Omega", "varphi", "vartheta", "varepsilon", "ell")  # fmt: skip
COMMANDS: Final[dict[str, tuple[Kind, str]]] = {
    **{name: ("name", name.removeprefix("var")) for name in _GREEK},
    "pi": ("constant", "pi"), "degree": ("symbol", "degree"), "circ": ("symbol", "degree"),
    "infty": ("symbol", "inf"), "infin": ("symbol", "inf"),
    "cdot": ("symbol", "*"), "times": ("symbol", "*"), "ast": ("symbol", "*"), "div": ("symbol", "/"),
    "frac": ("symbol", "frac"), "sqrt": ("symbol", "tex_sqrt"), "surd": ("function", "sqrt"),
    "cbrt": ("function", "cbrt"), "binom": ("symbol", "binom"), "dbinom": ("symbol", "binom"),
    "tbinom": ("symbol", "binom"), "le": ("symbol", "<="), "leq": ("symbol", "<="), "leqslant": ("symbol", "<="),
    "ge": ("symbol", ">="), "geq": ("symbol", ">="), "geqslant": ("symbol", ">="), "lt": ("symbol", "<"),
    "gt": ("symbol", ">"), "ne": ("symbol", "!="), "neq": ("symbol", "!="), "pm": ("symbol", "pm"),
    "mp": ("symbol", "mp"), "cup": ("symbol", "cup"), "cap": ("symbol", "cap"), "setminus": ("symbol", "setminus"),
    "backslash": ("symbol", "setminus"), "in": ("symbol", "in"), "emptyset": ("symbol", "set:empty"),
    "varnothing": ("symbol", "set:empty"), "mid": ("symbol", "|"), "vert": ("symbol", "|"), "lvert": ("symbol", "|"),
    "rvert": ("symbol", "|"), "colon": ("symbol", ":"), "lfloor": ("symbol", "lfloor"),
    "rfloor": ("symbol", "rfloor"), "lceil": ("symbol", "lceil"), "rceil": ("symbol", "rceil"),
    "lbrace": ("symbol", "set{"), "rbrace": ("symbol", "set}"), "{": ("symbol", "set{"), "}": ("symbol", "set}"),
    "lbrack": ("symbol", "["), "rbrack": ("symbol", "]"), "langle": ("symbol", "("), "rangle": ("symbol", ")"),
    "lparen": ("symbol", "("), "rparen": ("symbol", ")"), "land": ("symbol", "and"), "wedge": ("symbol", "and"),
    "lor": ("symbol", "or"), "vee": ("symbol", "or"), "%": ("symbol", "%"), "$": ("unit", "$"),
    "euro": ("unit", "€"), "pounds": ("unit", "£"), "yen": ("unit", "¥"),
    "prime": ("symbol", "'"), "R": ("symbol", "set:R"), "Z": ("symbol", "set:Z"), "N": ("symbol", "set:N"),
    "Q": ("symbol", "set:Q"), "C": ("symbol", "set:C"),
    "imath": ("constant", "i"),
}  # fmt: skip
KEYWORDS: Final[dict[str, tuple[Kind, str]]] = {
    "or": ("symbol", "or"), "and": ("symbol", "and"), "pi": ("constant", "pi"), "infinity": ("symbol", "inf"),
    "inf": ("symbol", "inf"), "oo": ("symbol", "inf"), "percent": ("symbol", "%"), "degrees": ("symbol", "degree"),
    "degree": ("symbol", "degree"), "deg": ("symbol", "degree"), "union": ("symbol", "cup"), "U": ("symbol", "U"),
    "per": ("symbol", "per"), "square": ("unit", "square"), "sq": ("unit", "square"), "cubic": ("unit", "cubic"),
    "squared": ("unit", "squared"), "cubed": ("unit", "cubed"),
    "hundred": ("symbol", "scale:100"), "thousand": ("symbol", "scale:1000"), "million": ("symbol", "scale:1000000"),
    "billion": ("symbol", "scale:1000000000"), "trillion": ("symbol", "scale:1000000000000"),
    "dozen": ("symbol", "scale:12"),
}  # fmt: skip
_PARTS = re.compile("|".join(sorted((*PLAIN_FUNCTIONS, *_GREEK, "pi"), key=len, reverse=True)) + "|[A-Za-z]")
_SMALL_WORDS = frozenset(
    [
        "is",
        "it",
        "no",
        "on",
        "or",
        "in",
        "at",
        "as",
        "an",
        "am",
        "be",
        "by",
        "do",
        "go",
        "he",
        "if",
        "me",
        "my",
        "of",
        "so",
        "to",
        "up",
        "us",
        "we",
        "ok",
        "not",
        "yes",
        "but",
        "the",
        "are",
        "was",
        "one",
        "two",
    ]
)
_VOWELS = frozenset("aeiouAEIOU")


def split_letters(letters: str) -> list[tuple[Kind, str]]:
    """The reading of one run of ASCII letters."""
    if letters in KEYWORDS:
        return [KEYWORDS[letters]]
    if letters.lower() in KEYWORDS and len(letters) > 2:
        return [KEYWORDS[letters.lower()]]
    if len(letters) == 1:
        return [_letter(letters)]
    if letters in _GREEK:
        return [("name", letters.removeprefix("var"))]
    if letters in PLAIN_FUNCTIONS:
        return [("function", PLAIN_FUNCTIONS[letters])]
    if find_unit(letters) is not None:
        return [("unit", letters)]
    if letters.lower() in _SMALL_WORDS:
        return [("word", letters)]
    return _parts(letters)


def _parts(letters: str) -> list[tuple[Kind, str]]:
    """`sinx`, `2pir`, `xy`, `abc`; any other longer run is a word."""
    pieces = _PARTS.findall(letters) if len(letters) <= 20 else [letters]
    singles = [piece for piece in pieces if len(piece) == 1]
    named = len(singles) < len(pieces)
    short = len(singles) <= 2
    vowel_free = len(letters) <= 4 and not any(letter in _VOWELS for letter in letters)
    algebra = len(letters) <= 4 and set(letters) <= set("abcxyz")
    if not ((named and short) or (not named and (short or vowel_free or algebra))):
        return [("word", letters)]
    out: list[tuple[Kind, str]] = []
    for piece in pieces:
        if len(piece) == 1:
            out.append(_letter(piece))
        elif piece == "pi":
            out.append(("constant", "pi"))
        elif piece in PLAIN_FUNCTIONS:
            out.append(("function", PLAIN_FUNCTIONS[piece]))
        else:
            out.append(("name", piece.removeprefix("var")))
    return out


def _letter(letter: str) -> tuple[Kind, str]:
    return ("constant", letter) if letter in "ei" else ("name", letter)
