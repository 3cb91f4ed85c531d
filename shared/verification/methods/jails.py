"""A guest program in a jail, with a channel to it.

Invariant: a jail that cannot be had, or is lost, is a `SandboxFault`; a program that ends is a `Result`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from shared.sandbox.limits import Limits
from shared.sandbox.prewarmed.child import Check, Child
from shared.sandbox.sandbox import Sandbox
from shared.verification.methods.bundle import program


@contextlib.asynccontextmanager
async def guest(
    sandbox: Sandbox, name: str, limits: Limits, *, imports: tuple[str, ...] = ()
) -> AsyncIterator[Child]:
    """Guest program `name` in a jail of its own, gone afterwards. `imports`: packages to have ready, for speed."""
    check = Check(program(name), channel=True, imports=imports, name=f"{name}.py")
    async with sandbox.prewarmed.open(check, limits) as child:
        yield child


def ready_imports(sandbox: Sandbox, *sources: str) -> tuple[str, ...]:
    """Packages worth having ready for these sources: NumPy takes a tenth of a second to import."""
    wanted = any("numpy" in source for source in sources)
    return ("numpy",) if wanted and "numpy" in sandbox.settings.python_packages else ()
