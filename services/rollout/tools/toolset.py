"""The tools of one attempt, and what their calls come to.

Invariant: every call that was read has exactly one record and one answer, up to a submission, which ends it; past the bounds of a turn or of the
attempt nothing runs, and the answer says so. Calls run one after another, in the order they were written: what the
second sees does not depend on luck.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.rollout.formats.calls import Call, Malformed
from services.rollout.formats.results import Answered
from services.rollout.tools.tool import Tool, whole_text
from shared.contracts import ToolCall
from shared.domains.tools import Submission, ToolRefusal
from shared.errors import ConfigError
from shared.plain_errors import nearest

_MOST_NAME = 100


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of the calls of one turn. `calls`: those that were read. `submission`: the final answer, if any."""

    answers: tuple[Answered, ...]
    calls: int
    submission: str | None = None


class RunsCalls(Protocol):
    """As much of a `Toolset` as an episode needs."""

    @property
    def tools(self) -> tuple[Tool, ...]: ...

    def schemas(self) -> list[dict[str, Any]]: ...

    async def run(
        self, calls: Sequence[Call | Malformed], *, most: int, turn: int, record: Callable[[ToolCall], None]
    ) -> Ran: ...


@dataclass(frozen=True, slots=True)
class Toolset:
    """Raises `ConfigError` where two tools have one name, or one reaches out and may not."""

    tools: tuple[Tool, ...]
    network: bool = False
    clock: Callable[[], float] = time.monotonic
    _by_name: dict[str, Tool] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for tool in self.tools:
            if self._by_name.setdefault(tool.name, tool) is not tool:
                raise ConfigError(f"two tools are called {tool.name!r}: rename one")
            if tool.network and not self.network:
                raise ConfigError(
                    f"tool {tool.name!r} reaches out of the sandbox: it needs the permission network"
                )

    def schemas(self) -> list[dict[str, Any]]:
        """As chat templates take them."""
        return [tool.signature.schema() for tool in self.tools]

    async def run(
        self, calls: Sequence[Call | Malformed], *, most: int, turn: int, record: Callable[[ToolCall], None]
    ) -> Ran:
        """Runs the first `most` calls; `record` gets each as soon as it is over. A submission ends the turn.

        Raises `ToolFault` and `SandboxFault`.
        """
        answers: list[Answered] = []
        read = 0
        for call in calls:
            if isinstance(call, Malformed):
                answers.append(Answered("", f"error: {call.reason}"))
                continue
            read += 1
            if read > most:
                refused = f"not run: at most {most} calls a turn; read these results first, then go on"
                done: ToolCall | str = _record(call, turn, error=refused)
            else:
                done = await self._one(call, turn, record)
            if isinstance(done, str):
                return Ran(tuple(answers), read, done)
            record(done)
            answers.append(Answered(done.name, f"error: {done.error}" if done.error else done.result))
        return Ran(tuple(answers), read)

    async def _one(self, call: Call, turn: int, record: Callable[[ToolCall], None]) -> ToolCall | str:
        """Its record; or what it submitted, recorded already."""
        began = self.clock()
        try:
            returned = await self._found(call).call(call.arguments)
        except ToolRefusal as refusal:
            return _record(call, turn, error=whole_text(str(refusal)), seconds=self.clock() - began)
        except asyncio.CancelledError:
            record(_record(call, turn, error="cut off: the attempt was over", seconds=self.clock() - began))
            raise
        seconds = self.clock() - began
        if isinstance(returned, Submission):
            record(_record(call, turn, seconds=seconds))
            return returned.answer
        return _record(call, turn, result=returned, seconds=seconds)

    def _found(self, call: Call) -> Tool:
        tool = self._by_name.get(call.name)
        if tool is None:
            name = call.name[:_MOST_NAME]
            raise ToolRefusal(
                f"there is no tool {name!r}{nearest(name, self._by_name)}; there are: {', '.join(self._by_name)}"
            )
        return tool


def _record(call: Call, turn: int, **outcome: Any) -> ToolCall:
    return ToolCall(name=call.name[:_MOST_NAME], arguments=call.arguments, turn=turn, **outcome)
