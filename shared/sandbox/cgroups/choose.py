"""Which way of counting this machine and the operator's settings allow.

Invariant: the weaker way is taken only where it is named in `allow_weaker`; what is missing is said in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from shared.sandbox.cgroups import v1, v2
from shared.sandbox.cgroups.base import FOLDER, Cgroups
from shared.sandbox.cgroups.mounts import Hierarchy, machine, place
from shared.sandbox.cgroups.none import NoCgroups
from shared.sandbox.faults import SandboxUnavailable
from shared.sandbox.settings import SandboxSettings

_MAKERS: Mapping[str, Callable[[list[Hierarchy]], Cgroups]] = {"v2": v2.V2, "v1": v1.V1}
"""In the order in which `auto` tries them."""


def choose(settings: SandboxSettings) -> Cgroups:
    """Raises `SandboxUnavailable` with the reasons and the mend."""
    found = machine()
    problems = []
    for mode, maker in _MAKERS.items():
        if settings.cgroups in ("auto", mode):
            try:
                return maker(found)
            except SandboxUnavailable as problem:
                problems.append(str(problem))
    if "rlimits_only" in settings.allow_weaker and settings.cgroups in ("auto", "none"):
        return NoCgroups()
    if settings.cgroups == "none":
        problems.append('sandbox.cgroups is "none"')
    raise SandboxUnavailable(
        f"runs cannot be counted: {'; '.join(problems)}. The weaker mode, without groups, must be allowed by name: "
        'sandbox.allow_weaker = ["rlimits_only"]'
    )


def available(settings: SandboxSettings | None = None) -> dict[str, str]:
    """What each way lacks here, by mode; an empty text where it can be used."""
    found = machine()
    lacks = {}
    for mode, maker in _MAKERS.items():
        try:
            maker(found).close()
            lacks[mode] = ""
        except SandboxUnavailable as problem:
            lacks[mode] = str(problem)
    allowed = settings is None or "rlimits_only" in settings.allow_weaker
    lacks["none"] = "" if allowed else "the weaker mode is not named in sandbox.allow_weaker"
    return lacks


def owners_folders() -> list[Path]:
    """The folders that hold one folder for each process of ours that makes groups, dead ones included."""
    limits = {*v1.LIMITS, *v2.LIMITS}
    folders = {
        place(one, sorted(limits)) / FOLDER
        for one in machine()
        if not one.controllers or one.controllers & set(v1.NEEDED)
    }
    return sorted(folder for folder in folders if folder.is_dir())
