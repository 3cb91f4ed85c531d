"""Handing running attempts back to their topic: at a shutdown that cannot wait for them, or at a new policy.

Invariant: an attempt that is handed back is acknowledged in its topic before its task counts as finished here; a kill
in between has both the task and the rest delivered, and the slot is filled by the first. Nothing is handed back
because somebody has enough of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import structlog

from services.rollout.continuing import Course, task_of
from services.rollout.engines.cut import Cut
from shared.contracts import Slot, Task

_log = structlog.get_logger(__name__)
Resend = Callable[[Task], Awaitable[None]]


class HandingBack:
    """`resend` puts a task into the topic that it came from. Of one event loop."""

    def __init__(self, resend: Resend) -> None:
        self._resend = resend
        self._open: set[Cut] = set()
        self._leaving = False
        self.count = 0

    @contextlib.contextmanager
    def cut(self) -> Iterator[Cut]:
        """Of the attempts of one task, for as long as they run."""
        cut = Cut()
        cut.near = self._leaving
        self._open.add(cut)
        try:
            yield cut
        finally:
            self._open.discard(cut)

    def at_a_publish(self) -> None:
        """Whatever runs now is to be handed back: answers at once, tools when they are through, since this process
        stays."""
        for cut in self._open:
            cut.ask("hand_back", grace_s=None)

    def ask(self) -> None:
        """Whatever runs now is to be handed back: this process ends."""
        for cut in self._open:
            cut.ask("hand_back")

    async def send(self, task: Task, slot: Slot, course: Course) -> None:
        rest = course.handed_back()
        await self._resend(task_of(task, slot, rest))
        self.count += 1
        _log.info(
            "attempt.handed_back",
            group=task.group_id,
            sample=slot.sample_index,
            turns=len(rest.turns),
            tokens=sum(turn.token_ids.size for turn in rest.turns),
            hops=rest.hops,
            workspace_bytes=rest.workspace.size_bytes if rest.workspace else 0,
            **({"starts_again": course.lost} if course.lost else {}),
        )

    async def at_the_end(self, stop: asyncio.Event, after_s: float) -> None:
        """Asks `after_s` after `stop`; never returns."""
        await stop.wait()
        self._leaving = True
        for cut in self._open:
            cut.near = True
        await asyncio.sleep(after_s)
        self.ask()
        await asyncio.Event().wait()
