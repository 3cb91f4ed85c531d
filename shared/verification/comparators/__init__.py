"""Typed comparators: the task declares the type, the comparator reads both sides the same way."""

from shared.verification.comparators.amounts import Amount, AmountComparator
from shared.verification.comparators.base import Comparator, Comparison
from shared.verification.comparators.choices import BooleanComparator, ChoiceComparator
from shared.verification.comparators.dates import DateComparator
from shared.verification.comparators.declared import declared_comparator
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

__all__ = [
    "Amount", "AmountComparator", "AnswerComparator", "BooleanComparator", "ChoiceComparator", "Comparator",
    "Comparison", "DateComparator", "DecimalComparator", "ExactIntegerComparator", "ExpressionComparator",
    "ExtractingComparator", "IntegerComparator", "IntegerListComparator", "IntervalComparator", "JsonComparator",
    "MatrixComparator", "MultisetComparator", "NumberComparator", "QuantityComparator", "RationalComparator",
    "SetComparator", "TableComparator", "TextComparator", "TupleComparator", "declared_comparator",
]  # fmt: skip
