"""A guest program in a jail, with a channel to it.

Invariant: a jail that cannot be had, or is lost, is a `SandboxFault`; a program that ends is a `Result`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Result
from shared.sandbox.sandbox import Sandbox
from shared.verification.methods.bundle import program


class Guest(Protocol):
    """A running guest program."""

    async def send(self, frame: bytes) -> None: ...
    async def receive(self) -> bytes | None: ...
    async def finish(self) -> Result: ...


@contextlib.asynccontextmanager
async def guest(sandbox: Sandbox, name: str, limits: Limits) -> AsyncIterator[Guest]:
    """Guest program `name` in a jail of its own, gone afterwards."""
    async with sandbox.prewarmed.open(program(name), limits) as child:
        yield child
