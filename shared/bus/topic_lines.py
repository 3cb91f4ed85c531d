"""Sends that have to wait for a topic's metadata, in line.

Invariant: per topic, sends go on in the order in which they came; lines of different topics do not wait for each other;
and one look-up answers everybody who was in line when it ended, for good or ill. An answered line is empty one turn of
the loop later, so that a steady stream of sends does not stay in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from shared.errors import BusError

LookUp = Callable[[str], Awaitable[int]]


@dataclass(slots=True)
class _Line:
    inside: int = 0
    """Sends that came and have not gone on yet."""
    answers: list[asyncio.Future[int]] = field(default_factory=list)
    """Those that wait for the look-up, in order."""
    answered: int | Exception | None = None
    """What the look-up said; None while it is made."""
    task: asyncio.Task[None] | None = None


class TopicLines:
    """One per producer; used on its asyncio loop."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def busy(self, topic: str) -> bool:
        """Whether somebody is in line: a later send has to go behind."""
        return topic in self._lines

    async def wait(self, topic: str, look_up: LookUp) -> int:
        """The number of partitions of `topic`. Raises what `look_up` raises."""
        line = self._lines.get(topic)
        if line is None:
            line = self._lines[topic] = _Line()
            # A task of its own: a sender in line may be cancelled, and the others still want the answer.
            line.task = asyncio.create_task(_look(line, topic, look_up))
        line.inside += 1
        try:
            if line.answered is not None:
                # Those before us are scheduled to run already: one turn of the loop later we are behind them.
                await asyncio.sleep(0)
                return _told(line.answered)
            answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            line.answers.append(answer)
            return await answer
        finally:
            line.inside -= 1
            if not line.inside and self._lines.get(topic) is line:
                del self._lines[topic]


async def _look(line: _Line, topic: str, look_up: LookUp) -> None:
    """Answers the whole line in one go, so that nobody can come in between."""
    try:
        line.answered = await look_up(topic)
    except Exception as error:  # noqa: BLE001  (raised in every send that waits for it)
        line.answered = error
    finally:
        for answer in line.answers:
            if answer.done():
                continue
            if line.answered is None:  # cancelled: the loop ends
                answer.cancel()
            elif isinstance(line.answered, Exception):
                answer.set_exception(_of_its_own(line.answered))
            else:
                answer.set_result(line.answered)


def _told(answered: int | Exception) -> int:
    if isinstance(answered, Exception):
        raise _of_its_own(answered)
    return answered


def _of_its_own(error: Exception) -> Exception:
    """A traceback grows with every raise: each send gets an error object of its own."""
    if not isinstance(error, BusError):
        return error
    mine = BusError(str(error))
    mine.__cause__ = error
    return mine
