"""A tool: a typed function and the bounds in which it is called.

Invariant: a call ends, in time and in size. What the policy did wrong is an answer to the policy; what we did wrong is
a `ToolFault` or `SandboxFault`, which ends the attempt as our fault and is never shown to the policy as its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from services.rollout.tools.budget import OutputBudget
from services.rollout.tools.schema import Signature, signature_of
from shared.domains.tools import Submission, ToolFunction, ToolRefusal
from shared.errors import ConfigError, TemperError
from shared.plain_errors import one_line
from shared.sandbox.faults import SandboxFault
from shared.sandbox.sessions.files import WorkspaceRefusal

CANCEL_GRACE_S = 5.0
"""For a function that does not end when it is told to; after it the attempt is over, with whatever still runs."""


class ToolFault(TemperError):
    """A tool that broke for a reason of ours."""


Returned = str | Submission


@dataclass(frozen=True, slots=True)
class Retry:
    """Of calls that our own fault prevented; the policy's errors are never tried again.

    More than one attempt only for tools that may be repeated: a command may have done half of its work.
    """

    attempts: int = 1
    pause_s: float = 0.2
    """Before the second; doubled before each further one."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.pause_s < 0:
            raise ConfigError(f"retry of {self.attempts} attempts, {self.pause_s} s apart: use 1 or more")


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool of one attempt.

    `timeout_s`: wall seconds of a call. `overrun`: whose doing it is that a call takes longer: the policy's (a query
    too wide), or ours (a command has limits of its own below this one, so the sandbox hangs). `network`: it reaches
    out of the sandbox.
    """

    signature: Signature
    function: ToolFunction
    timeout_s: float = 30.0
    overrun: Literal["policy", "ours"] = "policy"
    retry: Retry = field(default_factory=Retry)
    output: OutputBudget = field(default_factory=OutputBudget)
    network: bool = False

    @property
    def name(self) -> str:
        return self.signature.name

    async def call(self, arguments: Mapping[str, Any]) -> Returned:
        """What the policy reads, within the budget. Raises `ToolRefusal`, `ToolFault`, `SandboxFault`."""
        checked = self.signature.read(arguments)
        pause = self.retry.pause_s
        for left in range(self.retry.attempts - 1, -1, -1):
            try:
                return self._kept(await self._bounded(checked))
            except SandboxFault:
                if not left:
                    raise
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("a retry policy has at least one attempt")

    def _kept(self, returned: Returned) -> Returned:
        if isinstance(returned, Submission):
            return Submission(whole_text(returned.answer))
        if not isinstance(returned, str):
            raise ToolFault(
                f"tool {self.name!r} returned {type(returned).__name__}: it must return text (str)"
            )
        return self.output.keep(whole_text(returned))

    async def _bounded(self, arguments: dict[str, Any]) -> Returned:
        work = asyncio.ensure_future(self._guarded(arguments))
        try:
            done, _ = await asyncio.wait({work}, timeout=self.timeout_s)
            if done:
                return work.result()
        finally:
            await _ended(work)
        if not work.done():
            raise ToolFault(
                f"tool {self.name!r} did not end {CANCEL_GRACE_S:g} s after it was cancelled: mend it, it must let "
                "CancelledError through"
            )
        if self.overrun == "ours":
            raise SandboxFault(f"tool {self.name!r} took over {self.timeout_s:g} s: the sandbox hangs")
        raise ToolRefusal(f"{self.name} took longer than {self.timeout_s:g} s and was ended; ask for less")

    async def _guarded(self, arguments: dict[str, Any]) -> Returned:
        try:
            return await self.function(**arguments)
        except (ToolRefusal, ToolFault, SandboxFault):
            raise
        except WorkspaceRefusal as error:
            raise ToolRefusal(str(error)) from error
        except Exception as error:
            raise ToolFault(f"tool {self.name!r} broke: {one_line(error)}") from error


async def _ended(work: asyncio.Future[Any]) -> None:
    """Cancelled, and waited for as long as is reasonable."""
    if not work.done():
        work.cancel()
        await asyncio.wait({work}, timeout=CANCEL_GRACE_S)
    if work.done() and not work.cancelled():
        work.exception()  # seen: a late error after the timeout is nobody's


def make_tool(function: ToolFunction, name: str = "", **bounds: Any) -> Tool:
    """A tool of an async function. `bounds`: the fields of `Tool`. Raises `ConfigError` as `signature_of`."""
    return Tool(signature_of(function, name), function, **bounds)


def whole_text(text: str) -> str:
    """`text` without halves of characters, which no message can carry."""
    return text.encode("utf-8", "replace").decode("utf-8")
