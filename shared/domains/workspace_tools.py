"""Tools that every sandbox session offers, by name, and how its shell is started.

Invariant: the names that a configuration may give are those that an attempt can have.
"""

from __future__ import annotations

WORKSPACE_TOOLS = ("bash", "python", "read_file", "write_file", "search_files", "submit")
SHELLS = frozenset({"bash", "python"})
"""These see the whole work folder."""
_SHELL = ("/bin/sh", "-c", 'if command -v bash >/dev/null; then exec bash -c "$0"; else exec sh -c "$0"; fi')
"""A root file system of the operator's own need not have bash."""


def shell(command: str) -> tuple[str, ...]:
    """The arguments that run a shell command."""
    return (*_SHELL, command)
