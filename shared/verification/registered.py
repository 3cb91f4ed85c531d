"""Check methods of this build, by name.

Invariant: a method is imported when a domain first asks for it; a name that is none is a fault of ours.
"""

from __future__ import annotations

import importlib

from shared.errors import VerificationFault
from shared.plain_errors import nearest
from shared.verification.checks import Method


def registered(name: str) -> Method:
    """Raises `VerificationFault` for a name that no method has."""
    registry = importlib.import_module("shared.verification.methods.registry")
    if name not in registry.METHODS:
        known = sorted(registry.METHODS)
        raise VerificationFault(
            f"check method {name!r} is not known; known: {', '.join(known)}{nearest(name, set(known))}"
        )
    model, check = registry.METHODS[name]
    return Method(model, check)
