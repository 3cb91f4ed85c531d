"""Early completion of an oversampled group: what still runs is cut when enough attempts have ended.

Invariant: every slot still gets its trajectory, so nobody waits for one; those that were cut say so (`cancelled`). Of
the attempts of one task, `sampling.enough` at least came to their own end before any was cut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from services.rollout.engines.cut import Cut
from shared.contracts import Task, Trajectory


class Enough:
    """Counts the attempts of one task as they are sent; `cut` is theirs."""

    def __init__(self, task: Task, send: Callable[[Trajectory], Awaitable[None]], cut: Cut) -> None:
        self._missing = task.sampling.enough or task.sampling.group_size
        self._send = send
        self._cut = cut

    async def send(self, trajectory: Trajectory) -> None:
        await self._send(trajectory)
        if trajectory.stop_reason not in ("infrastructure", "cancelled"):
            self._missing -= 1
            if self._missing == 0:
                self._cut.ask("surplus")
