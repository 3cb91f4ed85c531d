"""An attempt's workspace, carried to the process that goes on with it.

Invariant: the next process finds the very files that the last tool left, and what the tools answered is told again
without running them. Calls that were cut off are undone first, and run again there: those of a turn that began when the
end was near, for whose sake a snapshot was taken. (Not of every turn: each keeps the old contents of what is written
after it, against the quota of the workspace.) A workspace that is too large, in the middle of an older call, or not what
was announced is not gone on with: the attempt starts again, and the log says why.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from services.rollout.continuing import Course, OtherContextError
from services.rollout.engines.cut import Cut
from services.rollout.formats.calls import Call, Malformed
from services.rollout.formats.results import Answered
from services.rollout.tools.tool import Tool
from services.rollout.tools.toolset import Ran, Toolset
from shared.contracts import ToolAnswer, ToolCall, ToolTurn, WorkspaceRef
from shared.errors import StorageError
from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import MIB
from shared.sandbox.sessions.files import WorkspaceRefusal
from shared.sandbox.sessions.session import Session
from shared.storage import ObjectStore

PREFIX = "workspaces"
MOST_BYTES = 32 * MIB
"""Of files. They are packed and sent in the last five seconds of a drain."""
IN_A_CALL = "a tool was running, and its files are half done"


@dataclass(frozen=True, slots=True)
class Carrying:
    """Through `store`, under digests. Apart by run, as bodies are: `temper storage sweep` removes what no record names."""

    store: ObjectStore
    run: str
    most_bytes: int = MOST_BYTES

    async def take(self, session: Session, course: Course) -> None:
        """What `course` needs to go on elsewhere; where it cannot be had, it says that it is lost."""
        if course.lost or not course.tool_turns:
            return  # Without an answered call the workspace is as the task has it.
        try:
            if course.before_calls is not None:
                await session.roll_back(course.before_calls)
            packed = await session.packed(self.most_bytes)
            course.workspace = await asyncio.to_thread(self._put, packed)
        except (WorkspaceRefusal, SandboxFault, StorageError) as error:
            course.lost = f"its workspace cannot be carried: {error}"

    def _put(self, packed: bytes) -> WorkspaceRef:
        digest = hashlib.sha256(packed).hexdigest()
        uri = self.store.put_bytes(f"{PREFIX}/{self.run}/{digest}", packed).uri
        return WorkspaceRef(uri=uri, sha256=digest, size_bytes=len(packed))

    async def put_back(self, session: Session, ref: WorkspaceRef) -> None:
        """Into an empty session. Raises `OtherContextError` where the tree is not to be had, `SandboxFault`."""
        try:
            if ref.size_bytes > 2 * self.most_bytes:
                raise WorkspaceRefusal(f"it is announced with {ref.size_bytes} bytes")
            packed = await asyncio.to_thread(self.store.get_bytes, ref.uri, ref.sha256)
            await session.unpack(packed)
        except (WorkspaceRefusal, StorageError) as error:
            raise OtherContextError(f"its workspace cannot be put back: {error}") from error


@dataclass(frozen=True, slots=True)
class Remembering:
    """In the place of `toolset`, where what its tools do to `session` is carried: `course` has their answers."""

    toolset: Toolset
    course: Course
    session: Session
    cut: Cut | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self.toolset.tools

    def schemas(self) -> list[dict[str, Any]]:
        return self.toolset.schemas()

    async def run(
        self, calls: Sequence[Call | Malformed], *, most: int, turn: int, record: Callable[[ToolCall], None]
    ) -> Ran:
        """As `Toolset.run`; turns that were answered before are answered so again."""
        told = self.course.told(turn)
        if told is None:
            told, ran = await self._run(calls, most=most, turn=turn, record=record)
        else:
            for call in told.calls:
                record(call)
            ran = Ran(tuple(Answered(answer.tool, answer.text) for answer in told.answers), told.read)
        self.course.tool_turns.append(told)
        return ran

    async def _run(
        self, calls: Sequence[Call | Malformed], *, most: int, turn: int, record: Callable[[ToolCall], None]
    ) -> tuple[ToolTurn, Ran]:
        records: list[ToolCall] = []

        def both(call: ToolCall) -> None:
            records.append(call)
            record(call)

        lost, mark = self.course.lost, await self._mark()
        self.course.lost, self.course.before_calls = lost or ("" if mark else IN_A_CALL), mark
        ran = await self.toolset.run(calls, most=most, turn=turn, record=both)
        self.course.lost, self.course.before_calls = lost, None
        if mark:
            await self.session.forget(mark)
        answers = tuple(ToolAnswer(tool=answer.tool, text=answer.text) for answer in ran.answers)
        return ToolTurn(answers=answers, calls=tuple(records), read=ran.calls), ran

    async def _mark(self) -> str | None:
        """What to go back to, where the calls may be cut off before they are through."""
        if self.cut is None or not self.cut.near or self.course.lost:
            return None
        try:
            return await self.session.snapshot()
        except WorkspaceRefusal:
            return None  # As many as there can be: it starts again.
