"""Where the commands print their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

LOG_WIDTH = 140
"""Of what is not a terminal: a file or a pipe has no edge at column 80 to wrap at."""


def screen() -> Console:
    """Plain text: no markup, no highlighting; as wide as the terminal, or as `LOG_WIDTH` where there is none."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=LOG_WIDTH)
