"""Raises while it is imported."""

1 / 0
