"""The fields a document can hold: what they are called, how a value is drawn, how an answer is compared.

Invariant: a drawn value reads under its own comparator, and two different values of a field never compare equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Literal

from shared.domains.draw import Draw
from shared.verification.comparators import (
    AmountComparator,
    Comparator,
    DateComparator,
    IntegerComparator,
    TextComparator,
)
from shared.verification.comparators.dates import written

FieldType = Literal["text", "integer", "date", "amount"]

COMPARATORS: dict[FieldType, Comparator[Any]] = {
    "text": TextComparator(),
    "integer": IntegerComparator(),
    "date": DateComparator(),
    "amount": AmountComparator(),
}
PEOPLE = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Iris", "Jack", "Kim", "Leo", "Mia", "Noah",
          "Olga", "Paul", "Rosa", "Sam", "Tina", "Max")  # fmt: skip
_CITIES = ("Rome", "Paris", "Oslo", "Cairo", "Lima", "Delhi", "Tokyo", "Berlin", "Madrid", "Vienna", "Dublin",
           "Prague", "Boston", "Denver", "Sydney", "London")  # fmt: skip
_COLORS = (
    "red",
    "blue",
    "green",
    "black",
    "white",
    "yellow",
    "brown",
    "pink",
    "gray",
    "orange",
    "purple",
    "gold",
)
_JOBS = ("nurse", "pilot", "baker", "judge", "farmer", "singer", "driver", "teacher", "doctor", "writer", "painter",
         "lawyer")  # fmt: skip
_FIRST_DAY = date(1950, 1, 1)
_DAYS = 25_567
"""To the end of 2019."""
_CURRENCIES = ("USD", "EUR", "GBP")


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: FieldType
    draw: Callable[[Draw], str]


@dataclass(frozen=True, slots=True)
class _OneOf:
    words: tuple[str, ...]

    def __call__(self, draw: Draw) -> str:
        return draw.choice(self.words)


@dataclass(frozen=True, slots=True)
class _Between:
    low: int
    high: int

    def __call__(self, draw: Draw) -> str:
        return str(draw.integer(self.low, self.high))


def _day(draw: Draw) -> str:
    return written(_FIRST_DAY + timedelta(days=draw.integer(0, _DAYS - 1)))


def _money(draw: Draw) -> str:
    return f"{draw.integer(1, 99)}.{draw.integer(0, 99):02d} {draw.choice(_CURRENCIES)}"


FIELDS: tuple[Field, ...] = (
    Field("city", "text", _OneOf(_CITIES)),
    Field("color", "text", _OneOf(_COLORS)),
    Field("job", "text", _OneOf(_JOBS)),
    Field("age", "integer", _Between(18, 99)),
    Field("room", "integer", _Between(100, 999)),
    Field("score", "integer", _Between(0, 50)),
    Field("birthday", "date", _day),
    Field("visit", "date", _day),
    Field("bill", "amount", _money),
    Field("fee", "amount", _money),
)
