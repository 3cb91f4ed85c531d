"""Check methods of this build, by name.

Invariant: a method is imported when a domain first asks for it; a name that is none is a fault of ours.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable

from shared.errors import VerificationFault
from shared.plain_errors import nearest
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.settings import SandboxSettings
from shared.verification.checks import Method
from shared.verification.jails import open_sandbox


def registered(name: str) -> Method:
    """Raises `VerificationFault` for a name that no method has."""
    registry = importlib.import_module("shared.verification.methods.registry")
    if name not in registry.DECLARED:
        known = sorted(registry.DECLARED)
        raise VerificationFault(
            f"check method {name!r} is not known; known: {', '.join(known)}{nearest(name, set(known))}"
        )
    found = registry.DECLARED[name]
    return Method(found.request, found.check, found.jailed)


async def sandbox_here(settings: SandboxSettings) -> Sandbox:
    """An open sandbox in which every method of this build can work. Raises as `open_sandbox`."""
    packages = sandbox_packages(settings.python_packages)
    return await open_sandbox(settings.model_copy(update={"python_packages": packages}))


def sandbox_packages(configured: Iterable[str]) -> tuple[str, ...]:
    """What jails must show: the configured packages, and those of the methods as far as they are installed here."""
    registry = importlib.import_module("shared.verification.methods.registry")
    wanted = [package for method in registry.DECLARED.values() for package in method.packages]
    here = [package for package in wanted if importlib.util.find_spec(package) is not None]
    return tuple(dict.fromkeys((*configured, *here)))
