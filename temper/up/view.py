"""Progress on the terminal: a live panel where there is one, plain lines elsewhere.

Invariant: everything that is news is printed once as a line and stays in the scroll-back; the panel below only
repeats what is current.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from temper.up.processes import Watched
from temper.up.progress import Progress, evaluation_line


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class View:
    """Shows one run. Use as a context manager."""

    def __init__(self, progress: Progress, started_s: float) -> None:
        self._progress = progress
        self._started_s = started_s
        self._console = Console(file=sys.stderr, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True, auto_refresh=False)

    def __enter__(self) -> View:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live.is_started:
            self._live.stop()

    def line(self, text: str) -> None:
        """One line that stays."""
        stamp = clock(time.monotonic() - self._started_s)
        self._console.print(Text(f"{stamp:>7}  {text}"), soft_wrap=True)

    def refresh(self, watched: tuple[Watched, ...]) -> None:
        if self._live.is_started:
            self._live.update(self._panel(watched), refresh=True)

    def _panel(self, watched: tuple[Watched, ...]) -> Group:
        progress = self._progress
        latest = progress.latest
        done = latest.step if latest else 0
        left = progress.seconds_left()
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(progress.settings.run.name, style="bold"),
            ProgressBar(total=max(1, progress.total_steps), completed=done, width=30),
            f"step {done}/{progress.total_steps}",
            f"{clock(time.monotonic() - self._started_s)} gone",
            f"about {clock(left)} left" if left is not None else "",
        )
        flow = (
            f"lag: tasks {progress.lag('rollout')}, trajectories {progress.lag('verifier')}   "
            f"{progress.tokens_per_second():.0f} tokens/s sampled"
        )
        rows: list[Table | Text] = [head, Text(flow)]
        rows += [Text(evaluation_line(e), style="green") for e in list(progress.evaluations.values())[-2:]]
        rows += [
            Text(f"held back: {name} ({why}); {progress.lifting(name)}", style="yellow")
            for name, why in progress.held.items()
        ]
        if progress.paused:
            rows.append(Text(f"{progress.paused}; `temper resume`", style="red"))
        rows += [Text(text, style="dim") for text in progress.waiting()]
        restarts = [f"{w.name} ×{w.starts - 1}" for w in watched if w.starts > 1]
        if restarts:
            rows.append(Text("restarted: " + ", ".join(restarts), style="yellow"))
        return Group(*rows)
