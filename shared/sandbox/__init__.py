"""Jails for programs that nobody trusts: nsjail, limits, sessions, prepared runs."""
