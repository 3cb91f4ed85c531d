"""Integer arithmetic: a few terms joined by operations, one number as answer."""

from shared.domains.arithmetic.domain import Arithmetic

__all__ = ["Arithmetic"]
