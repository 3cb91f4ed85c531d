"""Amounts of money: an exact number and a currency.

Invariant: without a currency there is no amount, and two currencies are never equal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from shared.verification.answers import Refusal, shown
from shared.verification.comparators.base import Comparator
from shared.verification.comparators.numbers import plain_minus, read_number

_SIGNS = {"€": "EUR", "£": "GBP", "¥": "JPY", "$": "USD"}
_BEFORE = re.compile(r"([A-Z]{3}|[€£¥$]) ?([+-]?[0-9][0-9,]*(?:\.[0-9]+)?)")
_AFTER = re.compile(r"([+-]?[0-9][0-9,]*(?:\.[0-9]+)?) ?([A-Z]{3}|[€£¥$])")


@dataclass(frozen=True, slots=True)
class Amount:
    value: Fraction
    currency: str
    """ISO 4217, three capitals."""


@dataclass(frozen=True, slots=True)
class AmountComparator(Comparator[Amount]):
    """`12.50 EUR`, `EUR 12.5`, `€12.50`. `$` is USD."""

    kind = "amount"

    def read(self, bare: str) -> Amount | Refusal:
        text = plain_minus(" ".join(bare.split()))
        if match := _BEFORE.fullmatch(text):
            currency, digits = match[1], match[2]
        elif match := _AFTER.fullmatch(text):
            digits, currency = match[1], match[2]
        else:
            return Refusal(f"{shown(text)} is not an amount with its currency alone")
        value = read_number(digits)
        return value if isinstance(value, Refusal) else Amount(value, _SIGNS.get(currency, currency))

    def same(self, left: Amount, right: Amount) -> bool:
        return left == right
