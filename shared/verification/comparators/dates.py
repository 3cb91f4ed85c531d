"""Calendar dates, written in a way that can mean one day only.

Invariant: a date whose day and month could be exchanged (03/05/1987) is refused, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date

from shared.verification.answers import Refusal, shown
from shared.verification.comparators.base import Comparator

MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
          "November", "December")  # fmt: skip
_NUMBER_OF = {name[:3].lower(): number for number, name in enumerate(MONTHS, start=1)}
_NUMBER_OF |= {name.lower(): number for number, name in enumerate(MONTHS, start=1)} | {"sept": 9}
_ISO = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})")
_DAY_FIRST = re.compile(r"([0-9]{1,2})(?:st|nd|rd|th)? ([A-Za-z]{3,9})\.?,? ([0-9]{4})")
_MONTH_FIRST = re.compile(r"([A-Za-z]{3,9})\.? ([0-9]{1,2})(?:st|nd|rd|th)?,? ([0-9]{4})")
_AMBIGUOUS = re.compile(r"[0-9]{1,2}([./-])[0-9]{1,2}\1[0-9]{2,4}")


def written(day: date) -> str:
    """`3 May 1987`."""
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


@dataclass(frozen=True, slots=True)
class DateComparator(Comparator[date]):
    """`1987-05-03`, `3 May 1987`, `3rd May 1987`, `May 3, 1987`; months in English, whole or three letters."""

    kind = "date"

    def read(self, bare: str) -> date | Refusal:
        text = " ".join(bare.split())
        if iso := _ISO.fullmatch(text):
            return _day(iso[1], int(iso[2]), iso[3], text)
        if match := _DAY_FIRST.fullmatch(text):
            return _day(match[3], _NUMBER_OF.get(match[2].lower(), 0), match[1], text)
        if match := _MONTH_FIRST.fullmatch(text):
            return _day(match[3], _NUMBER_OF.get(match[1].lower(), 0), match[2], text)
        if _AMBIGUOUS.fullmatch(text):
            return Refusal(f"{shown(text)} does not say which number is the month")
        return Refusal(f"{shown(text)} is not a date alone")

    def same(self, left: date, right: date) -> bool:
        return left == right


def _day(year: str, month: int, day: str, text: str) -> date | Refusal:
    try:
        return date(int(year), month, int(day))
    except ValueError:
        return Refusal(f"{shown(text)} is no day of the calendar")
