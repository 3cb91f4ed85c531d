"""Another value that looks like the first.

Invariant: who sees one of the two cannot tell by its looks which it is (no fixed step, sign or parity), and they differ
by enough for a tolerance of a test's own. Pure: the dice decide.
"""

from __future__ import annotations

import math
import random
from typing import Any


def another(value: Any, dice: random.Random) -> Any:
    """Another value that looks like the first: who sees one of the two must not see which it is. Numbers differ by
    enough for a tolerance of the test's own."""
    match value:
        case bool():
            return not value
        case int():
            return value + dice.choice((-1, 1)) * dice.randint(
                max(1, abs(value) // 1000), max(3, abs(value) // 2)
            )
        case float():
            return _near(value, dice)
        case str():
            return _misspelt(value, dice)
        case bytes():
            return _misspelt(value.decode("latin-1"), dice).encode("latin-1", "replace")
        case list() | tuple():
            return type(value)(_one_changed(list(value), dice))
        case dict():
            key = dice.choice(list(value)) if value else "a"
            return {**value, key: another(value[key], dice) if value else 0}
        case set():
            left = value - {dice.choice(sorted(value, key=repr))} if value else {0}
            return left or {None}
        case complex():
            return value + dice.choice((1, -1, 1j, -1j))
        case _:
            return dice.choice((0, False, ""))


def _near(value: float, dice: random.Random) -> float:
    if not math.isfinite(value) or abs(value) > 1e300:
        return 0.0
    step = max(1.0, abs(value)) * dice.choice((0.25, 0.5, 0.75, 1.5))
    return value + dice.choice((-1, 1)) * step


def _misspelt(text: str, dice: random.Random) -> str:
    if not text:
        return dice.choice("abcdefgh")
    at = dice.randrange(len(text))
    letter = dice.choice([c for c in "aeiorstnlk0123" if c != text[at]])
    return dice.choice(
        (
            text[:at] + letter + text[at + 1 :],
            text[:at] + text[at] + text[at:],
            text[:at] + letter + text[at:],
        )
    )


def _one_changed(items: list[Any], dice: random.Random) -> list[Any]:
    if not items:
        return [dice.randint(0, 9)]
    at, other = dice.randrange(len(items)), dice.randrange(len(items))
    if repr(items[at]) != repr(items[other]) and items[at] != items[other] and dice.random() < 0.5:
        items[at], items[other] = items[other], items[at]
    else:
        items[at] = another(items[at], dice)
    return items
