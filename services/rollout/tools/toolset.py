"""The tools of one attempt, and what their calls come to.

Invariant: every call that was read has exactly one record and one answer, up to a submission, which ends it; past the bounds of a turn or of the
attempt nothing runs, and the answer says so. Calls run one after another, in the order they were written: what the
second sees does not depend on luck.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.rollout.formats.calls import Call, Malformed
from services.rollout.formats.results import Answered
from services.rollout.tools.tool import Submission, Tool
from shared.contracts import ToolCall
from shared.domains.tools import ToolRefusal
from shared.errors import ConfigError
from shared.plain_errors import nearest

_MOST_NAME = 100


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of the calls of one turn. `submission`: the final answer, where one was submitted."""

    answers: tuple[Answered, ...]
    records: tuple[ToolCall, ...]
    submission: str | None = None
    malformed: int = 0


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

    async def run(self, calls: Sequence[Call | Malformed], *, most: int, turn: int = 0) -> Ran:
        """Runs the first `most` calls; a submission ends it. Raises `ToolFault` and `SandboxFault`."""
        answers: list[Answered] = []
        records: list[ToolCall] = []
        for number, call in enumerate(calls):
            if isinstance(call, Malformed):
                answers.append(Answered("", f"error: {call.reason}"))
                continue
            if number >= most:
                refused = f"not run: at most {most} calls a turn; read these results first, then go on"
                records.append(_record(call, turn, error=refused))
                answers.append(Answered(call.name[:_MOST_NAME], f"error: {refused}"))
                continue
            record, submission = await self._one(call, turn)
            records.append(record)
            if submission is not None:
                return Ran(tuple(answers), tuple(records), submission, _malformed(calls))
            said = f"error: {record.error}" if record.error else record.result
            answers.append(Answered(record.name, said))
        return Ran(tuple(answers), tuple(records), None, _malformed(calls))

    async def _one(self, call: Call, turn: int) -> tuple[ToolCall, str | None]:
        began = self.clock()
        try:
            returned = await self._found(call).call(call.arguments)
        except ToolRefusal as refusal:
            return _record(call, turn, error=str(refusal), seconds=self.clock() - began), None
        seconds = self.clock() - began
        if isinstance(returned, Submission):
            return _record(call, turn, seconds=seconds), returned.answer
        return _record(call, turn, result=returned, seconds=seconds), None

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


def _malformed(calls: Sequence[Call | Malformed]) -> int:
    return sum(isinstance(call, Malformed) for call in calls)
