"""What prewarmed checks need of a sandbox.

Invariant: `keeper` and `roots` are read anew for each fork server, since a sandbox has new ones when its keeper was lost.
"""

from __future__ import annotations

from typing import Protocol

from shared.sandbox.cgroups.base import Cgroups
from shared.sandbox.keeper.client import KeeperClient
from shared.sandbox.roots import Roots
from shared.sandbox.settings import SandboxSettings
from shared.sandbox.uids import Uids


class Host(Protocol):
    @property
    def settings(self) -> SandboxSettings: ...

    @property
    def nsjail(self) -> str: ...

    @property
    def keeper(self) -> KeeperClient: ...

    @property
    def roots(self) -> Roots: ...

    @property
    def uids(self) -> Uids: ...

    @property
    def cgroups(self) -> Cgroups: ...

    async def ready(self) -> None:
        """There is a keeper; a new one where the last was lost. Raises `SandboxFault` where none can be had."""
        ...
