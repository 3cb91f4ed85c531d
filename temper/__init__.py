"""The `temper` command, and the few names that domain authors import.

Invariant: `import temper` loads nothing; a name is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.contracts.reward import Verdict
    from shared.contracts.task import ChatMessage
    from shared.domains.admission import AdmissionReport, admit
    from shared.domains.agent import AgentProgram
    from shared.domains.base import (
        HELD_OUT_SEED,
        Difficulty,
        Domain,
        Draft,
        Instance,
        NearMiss,
        SandboxedDomain,
    )
    from shared.domains.draw import Draw
    from shared.domains.played import Played
    from shared.domains.registry import load_domain
    from shared.domains.tools import Bench, OffersTools, Submission, ToolRefusal
    from shared.domains.workspace import files_of, incomplete, tree_of
    from shared.errors import TemperError, VerificationFault
    from shared.verification.comparators import (
        AmountComparator,
        Comparator,
        DateComparator,
        IntegerComparator,
        IntegerListComparator,
        NumberComparator,
        TextComparator,
    )
    from shared.verification.judgement import Attempt, Judgement
    from shared.verification.request import CheckRequest

_PLACES = {
    "shared.contracts.reward": ("Verdict",),
    "shared.contracts.task": ("ChatMessage",),
    "shared.domains.agent": ("AgentProgram",),
    "shared.domains.admission": ("AdmissionReport", "admit"),
    "shared.domains.base": (
        "HELD_OUT_SEED",
        "Difficulty",
        "Domain",
        "Draft",
        "Instance",
        "NearMiss",
        "SandboxedDomain",
    ),
    "shared.domains.draw": ("Draw",),
    "shared.domains.played": ("Played",),
    "shared.domains.registry": ("load_domain",),
    "shared.domains.tools": ("Bench", "OffersTools", "Submission", "ToolRefusal"),
    "shared.errors": ("TemperError", "VerificationFault"),
    "shared.verification.comparators": (
        "AmountComparator",
        "Comparator",
        "DateComparator",
        "IntegerComparator",
        "IntegerListComparator",
        "NumberComparator",
        "TextComparator",
    ),
    "shared.verification.judgement": ("Attempt", "Judgement"),
    "shared.domains.workspace": ("files_of", "incomplete", "tree_of"),
    "shared.verification.request": ("CheckRequest",),
}

__all__ = [
    "HELD_OUT_SEED", "AdmissionReport", "AgentProgram", "AmountComparator", "Attempt", "Bench", "ChatMessage", "CheckRequest",
    "Comparator", "DateComparator", "Difficulty", "Domain", "Draft", "Draw", "Instance",
    "IntegerComparator", "IntegerListComparator", "Judgement", "NearMiss", "NumberComparator", "OffersTools", "Played",
    "SandboxedDomain", "Submission", "TemperError", "TextComparator", "ToolRefusal", "Verdict",
    "VerificationFault", "admit", "files_of", "incomplete", "load_domain", "tree_of",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'temper' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
