"""Checks in forks of a warmed interpreter: a jail each, made in a millisecond or two."""
