"""The built-in domains and the difficulties at which the tests of this folder look at them."""

from __future__ import annotations

from typing import Any

DIFFICULTIES: dict[str, tuple[dict[str, Any], ...]] = {
    "arithmetic": (
        {},
        {"digits": 1},
        {"digits": 2, "operations": ["+", "-"]},
        {"digits": 6, "operations": ["+", "-", "*"], "terms": 4},
    ),
    "extraction": (
        {},
        {"lines": 1, "types": ["date"]},
        {"lines": 3, "types": ["amount", "date", "integer"], "distractors": 2, "layouts": ["sentence"]},
        {"lines": 10, "types": ["text", "integer", "date", "amount"], "distractors": 12},
    ),
    "sequences": (
        {},
        {"length": 12, "operation": "reverse", "max_value": 999},
        {"length": 5, "operation": "dedupe", "max_value": 9},
        {"length": 6, "operation": "filter", "max_value": 20},
        {"operation": "mixed"},
    ),
}
CASES = [(name, difficulty) for name, all_of_it in DIFFICULTIES.items() for difficulty in all_of_it]
