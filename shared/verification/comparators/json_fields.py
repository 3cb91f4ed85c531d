"""JSON objects, field by field, each under its own type.

Invariant: an object is read strictly (one value a key, no key undeclared unless allowed, exact numbers), and partial
credit is the share of the declared weights whose fields are right. Reading is linear in a capped length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

from shared.errors import VerificationFault
from shared.verification.answers import Refusal, shown
from shared.verification.comparators.base import Comparator, Comparison
from shared.verification.comparators.formula.limits import POOL_WORK, Work
from shared.verification.comparators.numbers import read_number
from shared.verification.judgement import Judgement

_MAX_DEPTH = 32


class _Unread(ValueError):
    """Why a text is no JSON value; caught here."""


def read_json(text: str) -> Any:
    """Numbers as fractions, objects with unique keys, at most `_MAX_DEPTH` deep. Raises `ValueError`."""
    if _depth(text) > _MAX_DEPTH:
        raise _Unread(f"it is nested over {_MAX_DEPTH} deep")
    return json.loads(
        text, parse_int=_number, parse_float=_number, parse_constant=_refuse, object_pairs_hook=_unique
    )


def _depth(text: str) -> int:
    """An upper bound, since brackets inside strings count as well."""
    depth = deepest = 0
    for character in text:
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def _number(digits: str) -> Fraction:
    value = read_number(digits)
    if isinstance(value, Refusal):
        raise _Unread(value.reason)
    return value


def _refuse(name: str) -> Any:
    raise _Unread(f"{name} is no JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise _Unread("a key is there twice")
    return out


def unfenced(text: str) -> str:
    """A Markdown code fence around the whole taken off."""
    lines = text.strip().splitlines()
    if len(lines) >= 3 and lines[0].startswith("```") and lines[-1].strip() == "```":
        return "\n".join(lines[1:-1])
    return text


def as_text(value: Any) -> str:
    """A JSON scalar as a field's comparator reads it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value) if isinstance(value, Fraction) else json.dumps(value, default=str, sort_keys=True)


@dataclass(frozen=True, slots=True)
class JsonComparator(Comparator[dict[str, Any]]):
    """An object with the declared `fields`; without any, whole JSON values are equal as data.

    `weights` default to 1 each. `partial`: a share of right fields is a `partial` verdict with that reward, instead
    of a failure. `extra`: keys that are not declared are `refused` or `ignored`. A missing field is a wrong one.
    """

    kind: ClassVar[str] = "json"
    max_chars: ClassVar[int] = 65_536
    fields: Mapping[str, Comparator[Any]] = field(default_factory=dict)
    weights: Mapping[str, Fraction] = field(default_factory=dict)
    partial: bool = False
    extra: str = "refused"

    def read(self, bare: str) -> Any:
        try:
            value = read_json(unfenced(bare))
        except (ValueError, RecursionError) as error:
            return Refusal(f"{shown(bare)} is no JSON: {error}")
        if not self.fields:
            return {"": value}
        if not isinstance(value, dict):
            return Refusal(f"{shown(bare)} is no JSON object")
        unknown = sorted(set(value) - set(self.fields))
        if unknown and self.extra == "refused":
            return Refusal(f"the key {shown(unknown[0])} is not asked for")
        return {name: value[name] for name in self.fields if name in value}

    def same(self, left: dict[str, Any], right: dict[str, Any]) -> bool:
        return all(self.right_fields(left, right).values())

    def right_fields(self, left: dict[str, Any], right: dict[str, Any]) -> dict[str, bool]:
        """For each field whether both sides agree. Symmetric."""
        if not self.fields:
            return {"": _equal_data(left[""], right[""])}
        pool = Work(POOL_WORK)
        return {
            name: name in left
            and name in right
            and comparator.within(pool).compare(as_text(left[name]), as_text(right[name])).equal
            for name, comparator in self.fields.items()
        }

    def _earned(
        self, wanted: dict[str, Any], found: dict[str, Any], right: dict[str, bool]
    ) -> dict[str, bool]:
        """`right` without the fields that only state a calculation."""

        def undone(name: str) -> bool:
            comparator = self.fields[name]
            sides = [comparator.parse(as_text(side[name])) for side in (wanted, found)]
            return comparator.undone(*sides)

        return {name: ok and not (self.fields and undone(name)) for name, ok in right.items()}

    def compare(self, left: str, right: str) -> Comparison:
        first, second = self.parse(left), self.parse(right)
        if isinstance(first, Refusal) or isinstance(second, Refusal) or not self.fields:
            return Comparator.compare(self, left, right)
        right_fields = self.right_fields(first, second)
        if all(right_fields.values()):
            return Comparison(True)
        return Comparison(False, f"two different answers of type json: {_wrong(right_fields)}")

    def judge(self, expected: str, answer: str) -> Judgement:
        """Raises `VerificationFault` where a field of the expected object is missing or unreadable."""
        wanted, found = self.parse(expected), self.parse(answer)
        if isinstance(wanted, Refusal):
            raise VerificationFault(f"the expected json is unreadable: {wanted.reason}; mend the domain")
        for name, comparator in self.fields.items():
            value = comparator.parse(as_text(wanted[name])) if name in wanted else Refusal("it is missing")
            if isinstance(value, Refusal):
                raise VerificationFault(
                    f"the expected json is unreadable in {name!r}: {value.reason}; mend the domain"
                )
        if isinstance(found, Refusal):
            return Judgement.failed(found.reason)
        right = self._earned(wanted, found, self.right_fields(wanted, found))
        if all(right.values()):
            return Judgement.passed()
        share = self._share(right)
        reason = f"wrong json: {_wrong(right)}" if self.fields else f"wrong json: {shown(answer.strip())}"
        if not self.partial or not 0 < share < 1:
            return Judgement.failed(reason)
        return Judgement.partial(float(share), reason, {name: float(ok) for name, ok in right.items()})

    def _share(self, right: Mapping[str, bool]) -> Fraction:
        weights = {name: self.weights.get(name, Fraction(1)) for name in right}
        total = sum(weights.values(), Fraction(0))
        return (
            sum((weights[name] for name, ok in right.items() if ok), Fraction(0)) / total
            if total
            else Fraction(0)
        )


def _wrong(right: Mapping[str, bool]) -> str:
    return "field " + ", ".join(repr(name) for name, ok in right.items() if not ok)


def _equal_data(left: Any, right: Any) -> bool:
    """As Python compares them, but `true` is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(_equal_data(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal_data(left[key], right[key]) for key in left)
    return type(left) is type(right) and bool(left == right)
