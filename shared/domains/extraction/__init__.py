"""Typed fields out of a small generated document."""

from shared.domains.extraction.domain import Extraction

__all__ = ["Extraction"]
