"""Small lists of integers: sort, filter, dedupe, reverse."""

from shared.domains.sequences.domain import Sequences

__all__ = ["Sequences"]
