"""The sandbox session of one attempt, with the files that it begins with.

Invariant: a session that was lent is given back when its attempt is over, however it ends; files that no workspace takes
are the task's fault, and are told before a token is sampled.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from services.rollout.tools.workspace import with_files
from shared.contracts import Task
from shared.domains.tools import ToolRefusal
from shared.errors import ContractError
from shared.sandbox.sessions.files import WorkspaceRefusal
from shared.sandbox.sessions.pool import Lent

LEASE_GRACE_S = 60.0
"""Over the attempt's own wall time, which ends first: the lease is for attempts that we have lost."""


class Sessions(Protocol):
    """Who lends sessions: `SessionPool`, or `Places`."""

    def lease(self, files: Mapping[str, bytes], seconds: float) -> AbstractAsyncContextManager[Lent]: ...


@contextlib.asynccontextmanager
async def leased(
    sessions: Sessions, task: Task, files: Mapping[str, str], wall_s: float
) -> AsyncIterator[Lent]:
    """For an attempt of `wall_s` seconds. Raises `ContractError` for files that cannot be there, `SandboxFault`."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            lease = sessions.lease(with_files(files), wall_s + LEASE_GRACE_S)
            lent = await stack.enter_async_context(lease)
        except (WorkspaceRefusal, ToolRefusal) as error:
            raise ContractError(
                f"task {task.group_id}: its files cannot be put into a sandbox: {error}"
            ) from error
        yield lent
