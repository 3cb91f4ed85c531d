"""Jobs in a small workspace, done by shell commands, judged by what is there afterwards."""

from shared.domains.terminal.domain import Terminal

__all__ = ["Terminal"]
