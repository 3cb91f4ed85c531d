"""How a session comes to be.

Invariant: a session that could not be opened leaves nothing: neither its tmpfs nor its user number stays taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from shared.sandbox.faults import SandboxFault
from shared.sandbox.keeper.client import KeeperClient
from shared.sandbox.limits import Limits
from shared.sandbox.sessions.session import RunsAt, Session
from shared.sandbox.sessions.workspace import Store, Workspace


async def open_session(
    sandbox: RunsAt,
    keeper: KeeperClient,
    *,
    uid: int,
    files: Mapping[str, bytes],
    limits: Limits,
    root: str,
    give_back: Callable[[int], None],
) -> Session:
    """A session owned by `uid`, which `give_back` gets at the end. Raises `WorkspaceRefusal` and `SandboxFault`."""
    workspace: Workspace | None = None
    try:
        workspace = await _open(keeper, uid, limits)
        await workspace.put(files)
        return Session(sandbox, workspace, limits, root, give_back)
    except BaseException:
        if workspace is not None:
            with contextlib.suppress(SandboxFault):
                await workspace.close()
        give_back(uid)
        raise


async def _open(keeper: KeeperClient, uid: int, limits: Limits) -> Workspace:
    # The number is unique among the living: a family keeps its uid until its last member is closed.
    return await Store(keeper, str(uid), uid, limits).open()
