"""Typed comparators and the killable children that run checks."""
