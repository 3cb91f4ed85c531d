"""Typed comparators: the task declares the type, the comparator reads both sides the same way."""

from shared.verification.comparators.amounts import Amount, AmountComparator
from shared.verification.comparators.base import Comparator, Comparison
from shared.verification.comparators.dates import DateComparator
from shared.verification.comparators.lists import IntegerListComparator
from shared.verification.comparators.numbers import IntegerComparator, NumberComparator
from shared.verification.comparators.text import TextComparator

__all__ = [
    "Amount", "AmountComparator", "Comparator", "Comparison", "DateComparator", "IntegerComparator",
    "IntegerListComparator", "NumberComparator", "TextComparator",
]  # fmt: skip
