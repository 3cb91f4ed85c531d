"""From a declared type to its comparator.

Invariant: a type is a name, or an object with its name under `type` and its options beside it; an unknown name or
option is a `ConfigError` that names the nearest known one. The answer has no say in its type.

Without a declared type the comparator is `answer`: each side is read alone, for what its own text says it is, and two
values of different kinds are equal only where the pair says so (an interval and the condition that describes it). So
inference is symmetric: exchanging gold and answer exchanges nothing but their names. `value_only`, on by default for
`integer`, `rational`, `decimal`, `number` and `quantity`, then asks of the answer alone that it is evaluated.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, cast, get_args

from shared.errors import ConfigError
from shared.verification.answers import Extraction
from shared.verification.comparators.amounts import AmountComparator
from shared.verification.comparators.base import Comparator
from shared.verification.comparators.choices import BooleanComparator, ChoiceComparator
from shared.verification.comparators.dates import DateComparator
from shared.verification.comparators.extracting import ExtractingComparator
from shared.verification.comparators.json_fields import JsonComparator
from shared.verification.comparators.lists import IntegerListComparator
from shared.verification.comparators.math_answers import (
    AnswerComparator,
    DecimalComparator,
    ExactIntegerComparator,
    ExpressionComparator,
    IntervalComparator,
    MatrixComparator,
    MultisetComparator,
    QuantityComparator,
    RationalComparator,
    SetComparator,
    TupleComparator,
)
from shared.verification.comparators.numbers import IntegerComparator, NumberComparator
from shared.verification.comparators.tables import TableComparator
from shared.verification.comparators.text import TextComparator

TYPES: Mapping[str, Callable[..., Comparator[Any]]] = {
    "answer": AnswerComparator, "text": TextComparator, "integer": ExactIntegerComparator,
    "rational": RationalComparator, "decimal": DecimalComparator, "quantity": QuantityComparator,
    "set": SetComparator, "multiset": MultisetComparator, "tuple": TupleComparator, "interval": IntervalComparator,
    "matrix": MatrixComparator, "expression": ExpressionComparator, "choice": ChoiceComparator,
    "boolean": BooleanComparator, "date": DateComparator, "json": JsonComparator, "table": TableComparator,
    "amount": AmountComparator, "plain_integer": IntegerComparator, "plain_number": NumberComparator,
    "integer_list": IntegerListComparator, "number": DecimalComparator, "equation": ExpressionComparator,
}  # fmt: skip
_CHOICES = {"extra": ("refused", "ignored"), "rows": ("sequence", "set", "bag")}
_FLAGS = ("value_only", "fold_case", "ordered", "partial", "header")
_RULES = {
    "percent": ("hundredth", "distinct"),
    "missing_unit": ("allowed", "refused"),
    "units": ("converted", "literal"),
}


def declared_comparator(declared: str | Mapping[str, Any]) -> Comparator[Any]:
    """`tolerance` is another name of `absolute`. Raises `ConfigError`."""
    options = {"type": declared} if isinstance(declared, str) else dict(declared)
    if "tolerance" in options:
        options["absolute"] = options.pop("tolerance")
    name = options.pop("type", "answer")
    policy = options.pop("extraction", "whole")
    if not isinstance(name, str) or name not in TYPES:
        raise ConfigError(f"answer type {name!r} is unknown{_nearest(str(name), TYPES)}")
    if policy not in get_args(Extraction):
        raise ConfigError(f"extraction {policy!r} is unknown: use {', '.join(get_args(Extraction))}")
    comparator = _made(name, options)
    return comparator if policy == "whole" else ExtractingComparator(comparator, cast(Extraction, policy))


def _made(name: str, options: dict[str, Any]) -> Comparator[Any]:
    make: Any = TYPES[name]
    known = {item.name: item for item in dataclasses.fields(make)}
    values: dict[str, Any] = {}
    rules = {
        key: _one_of(key, options.pop(key), _RULES[key])
        for key in _RULES
        if "rules" in known and key in options
    }
    if rules:
        default = make().rules
        values["rules"] = dataclasses.replace(default, **rules)
    allowed = [key for key in known if key not in ("rules", "resort", "pool")]
    for key, value in options.items():
        if key not in allowed:
            raise ConfigError(
                f"answer type {name!r} has no option {key!r}{_nearest(key, [*allowed, *(_RULES if 'rules' in known else ())])}"
            )
        values[key] = _value(name, key, value)
    made: Comparator[Any] = make(**values)
    return made


def _value(name: str, key: str, value: Any) -> Any:
    if key in ("absolute", "relative"):
        return _fraction(key, value)
    if key in ("fields", "columns", "weights"):
        if not isinstance(value, Mapping) or not value:
            raise ConfigError(f"option {key!r} of answer type {name!r} is {value!r}: give an object by name")
        read: Callable[[Any], Any] = (
            (lambda weight: _fraction("weights", weight)) if key == "weights" else declared_comparator
        )
        return {str(part): read(inner) for part, inner in value.items()}
    if key in _FLAGS:
        return _one_of(key, value, (True, False))
    if key in _CHOICES:
        return _one_of(key, value, _CHOICES[key])
    if not isinstance(value, str) or not value.isascii() or not value.isalpha():
        raise ConfigError(f"option {key!r} is {value!r}: give letters")
    return value.upper()


def _fraction(key: str, value: Any) -> Fraction:
    try:
        number = Fraction(str(value)) if not isinstance(value, bool) else Fraction(-1)
    except (ValueError, ZeroDivisionError):
        number = Fraction(-1)
    if number < 0:
        raise ConfigError(f'option {key!r} is {value!r}: give a number of at least 0, such as "0.01"')
    return number


def _one_of(key: str, value: Any, known: tuple[Any, ...]) -> Any:
    if not any(value is one or (isinstance(one, str) and value == one) for one in known):
        raise ConfigError(
            f"option {key!r} is {value!r}: use {' or '.join(str(one).lower() for one in known)}"
        )
    return value


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else f": use {', '.join(known)}"
