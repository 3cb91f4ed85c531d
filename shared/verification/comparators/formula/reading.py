"""From the text of one answer to its value.

Invariant: never raises for a text: it gives a value, or a `Refusal` with the reason. Words are an answer only where
they are nothing but words; a broken formula is never taken for words.
"""

from __future__ import annotations

import re

from shared.verification.answers import Refusal, shown
from shared.verification.comparators.dates import DateComparator
from shared.verification.comparators.formula.interpret import Interpreter, folded
from shared.verification.comparators.formula.limits import SyntaxFault, TooMuch, Unreadable, Work
from shared.verification.comparators.formula.regions import REALS
from shared.verification.comparators.formula.source import plain_source
from shared.verification.comparators.formula.statements import parse
from shared.verification.comparators.formula.values import Clock, Day, Phrase, Region, Rules, Value

_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))? ?(?:\\text\{ ?)?(?:([AaPp])\.?[Mm]\.?)? ?\}?")
_HALF_DAY = re.compile(r"([0-9]{1,2}) ?(?:\\text\{ ?)?([AaPp])\.?[Mm]\.? ?\}?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}|.*[A-Za-z]{3}.*[0-9]{4}|[0-9]{1,2}.*[A-Za-z]{3}.*[0-9]{4}")
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm)?|mathrm|mbox)\s*\{([^{}]*)\}")
_REALS = frozenset(("all real numbers", "all reals", "the real numbers", "real numbers"))
_DATES = DateComparator()


def read_value(text: str, rules: Rules, work: Work) -> Value | Refusal:
    """The value of a bare answer."""
    try:
        source = plain_source(text)
        work.spend(len(source))  # a character takes about 10 µs to parse
        return _clock(source) or _day(source) or Interpreter(rules, work).of(parse(source))
    except SyntaxFault as fault:
        return _phrase(source) or Refusal(f"{shown(text)} is not readable: {fault}")
    except (Unreadable, TooMuch) as fault:
        return Refusal(f"{shown(text)} is not readable: {fault}")


def _clock(source: str) -> Clock | None:
    """`12:30`, `1:30 PM`, `13:30:05`, `9 am`; a time that no clock shows is none."""
    match = _TIME.fullmatch(source)
    if match:
        hour, minute, second, half = int(match[1]), int(match[2]), int(match[3] or 0), match[4]
    elif short := _HALF_DAY.fullmatch(source):
        hour, minute, second, half = int(short[1]), 0, 0, short[2]
    else:
        return None
    if half:
        if not 1 <= hour <= 12:
            raise Unreadable("a time that no clock shows")
        hour = hour % 12 + (12 if half in "pP" else 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    return Clock(hour * 3600 + minute * 60 + second)


def _day(source: str) -> Day | None:
    if len(source) > 40 or not _DAY.fullmatch(source):
        return None
    day = _DATES.read(source)
    return None if isinstance(day, Refusal) else Day(day)


def _phrase(source: str) -> Value | None:
    """Nothing but words: no command, brace or power is left, and there is a letter."""
    plain = " ".join(_TEXT.sub(r" \1 ", source).split()).strip(" .")
    if not any(character.isalpha() for character in plain) or any(sign in plain for sign in "\\{}^_$"):
        return None
    words = folded(plain)
    return Region(REALS) if words in _REALS else Phrase(words)
