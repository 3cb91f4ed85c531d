"""What this machine offers to the sandbox, what is missing, and the mend.

Invariant: every line comes from trying the thing, not from guessing by version; a machine that the doctor passes can
run jails in the mode it names.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shared.errors import TemperError
from shared.sandbox.binary import find_nsjail
from shared.sandbox.cgroups.choose import available
from shared.sandbox.command import Command
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.seccomp import Policy
from shared.sandbox.settings import SandboxSettings

Status = Literal["ok", "weaker", "missing"]
_TRIAL = Limits(wall_s=20, cpu_s=10)
_CAP_SYS_ADMIN = 21


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was tried. `mend` is empty where nothing is wrong."""

    name: str
    status: Status
    found: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`usable`: jails can be run with these settings. `weaker`: only in a mode that the operator allowed by name."""

    lines: tuple[Line, ...]

    @property
    def usable(self) -> bool:
        return all(line.status != "missing" for line in self.lines)

    @property
    def weaker(self) -> bool:
        return any(line.status == "weaker" for line in self.lines)


async def examine(settings: SandboxSettings) -> Diagnosis:
    """Tries everything in order; what stands on a missing thing is not tried."""
    lines = [_privileges(), _namespaces(), _filter(), _binary(settings), _groups(settings), _state(settings)]
    if all(line.status != "missing" for line in lines):
        lines += await _trials(settings)
    return Diagnosis(tuple(lines))


def _privileges() -> Line:
    effective = next(
        line.split()[1]
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("CapEff")
    )
    if int(effective, 16) >> _CAP_SYS_ADMIN & 1:
        return Line("privileges", "ok", f"uid {os.geteuid()} with CAP_SYS_ADMIN")
    return Line(
        "privileges", "missing", f"uid {os.geteuid()} without CAP_SYS_ADMIN",
        "run the verifier as root, or give its container CAP_SYS_ADMIN (jails themselves have no capability)",
    )  # fmt: skip


def _namespaces() -> Line:
    kinds = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
    lacking = [kind for kind in kinds if not Path(f"/proc/self/ns/{kind}").exists()]
    with contextlib.suppress(OSError, ValueError):
        if int(Path("/proc/sys/user/max_user_namespaces").read_text()) == 0:
            lacking.append("user (user.max_user_namespaces is 0)")
    if lacking:
        mend = "sysctl -w user.max_user_namespaces=15000, or a kernel with these namespaces"
        return Line("namespaces", "missing", f"none of: {', '.join(lacking)}", mend)
    return Line("namespaces", "ok", ", ".join(kinds))


def _filter() -> Line:
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    try:
        policy = Policy()
        found = actions.read_text().split()
    except (OSError, TemperError) as error:
        return Line(
            "system call filter",
            "missing",
            str(error),
            "a kernel with CONFIG_SECCOMP_FILTER on x86_64 or aarch64",
        )
    if not {"kill_process", "errno"} <= set(found):
        return Line(
            "system call filter", "missing", f"actions {' '.join(found)}", "a kernel of 4.14 or newer"
        )
    return Line(
        "system call filter",
        "ok",
        f"{len(policy.allowed)} calls allowed, {len(policy.refused)} refused by name",
    )


def _binary(settings: SandboxSettings) -> Line:
    try:
        return Line("nsjail", "ok", find_nsjail(settings.nsjail))
    except TemperError as error:
        problem, _, mend = str(error).partition(": ")
        return Line("nsjail", "missing", problem, mend)


def _groups(settings: SandboxSettings) -> Line:
    lacks = available(settings)
    wanted = ("v2", "v1") if settings.cgroups == "auto" else (settings.cgroups,)
    for mode in wanted:
        if mode != "none" and not lacks[mode]:
            return Line("control groups", "ok", f"version {mode[1:]}")
    reasons = "; ".join(f"{mode}: {lacks[mode]}" for mode in ("v2", "v1") if lacks[mode])
    if not lacks["none"] and settings.cgroups in ("auto", "none"):
        return Line(
            "control groups", "weaker", f"none used ({reasons or 'as configured'}): rlimits only, as allowed by name",
            "mount cgroup v2 with memory and pids, writable for the verifier",
        )  # fmt: skip
    return Line(
        "control groups", "missing", reasons or "none, as configured",
        'make the cgroup file system writable for the verifier, or accept less: sandbox.allow_weaker = ["rlimits_only"]',
    )  # fmt: skip


def _state(settings: SandboxSettings) -> Line:
    """A jail's outside user must be able to walk to its root: each folder on the way needs x for others."""
    folder = Path(settings.state_folder).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o711)
    except OSError as error:
        return Line(
            "state folder", "missing", f"{folder}: {error.strerror}", "name a writable sandbox.state_folder"
        )
    shut = [str(path) for path in (folder, *folder.parents) if not path.stat().st_mode & stat.S_IXOTH]
    if shut:
        mend = f"chmod o+x {' '.join(shut)}, or name another sandbox.state_folder"
        return Line("state folder", "missing", f"{folder} is closed to jails by {', '.join(shut)}", mend)
    return Line("state folder", "ok", str(folder))


async def _trials(settings: SandboxSettings) -> list[Line]:
    """Real jails: one line each; the first that fails is the last tried."""
    lines: list[Line] = []
    try:
        async with asyncio.timeout(120), Sandbox(settings) as sandbox:
            trials: list[tuple[str, Callable[[], Awaitable[str]]]] = [
                ("a jail", lambda: _shell(sandbox, "default")),
                ("python in a jail", lambda: _python(sandbox, "default")),
                ("sessions (overlayfs)", lambda: _session(sandbox)),
            ]
            for name in settings.roots:
                trials.append((f"root {name}", lambda name=name: _declared(sandbox, name)))  # type: ignore[misc]
            for name, trial in trials:
                lines.append(await _tried(name, trial))
                if lines[-1].status == "missing":
                    break
    except (TemperError, TimeoutError) as error:
        lines.append(Line("a keeper", "missing", str(error) or "not done after 120 s", "see the message"))
    return lines


async def _tried(name: str, trial: Callable[[], Awaitable[str]]) -> Line:
    try:
        return Line(name, "ok", await trial())
    except TemperError as error:
        return Line(
            name, "missing", str(error), "see the message; `temper sandbox run --json -- true` shows more"
        )


async def _shell(sandbox: Sandbox, root: str) -> str:
    result = (
        await sandbox.run(Command(("/bin/sh", "-c", "echo jailed")), _TRIAL, root=root)
    ).raise_for_infrastructure()
    if result.stdout != b"jailed\n":
        raise TemperError(
            f"/bin/sh in root {root!r} said {result.stdout!r} {result.stderr[-200:]!r}, {result.outcome}"
        )
    return f"{result.outcome} in {result.usage.wall_s * 1000:.0f} ms"


async def _python(sandbox: Sandbox, root: str) -> str:
    script = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
    result = (
        await sandbox.run(Command(("python3", "-I", "-c", script)), _TRIAL, root=root)
    ).raise_for_infrastructure()
    if not result.ok:
        raise TemperError(
            f"python3 in root {root!r} did not start: {result.stderr[-200:]!r}, {result.outcome}"
        )
    return f"Python {result.stdout.decode().strip()}"


async def _declared(sandbox: Sandbox, root: str) -> str:
    """A declared root has a shell, and no package of ours: it would show every domain's answers."""
    await _shell(sandbox, root)
    script = "for d in $(find / -xdev -type d -path '*/shared/domains' 2>/dev/null); do echo $d; done"
    result = await sandbox.run(Command(("/bin/sh", "-c", script)), _TRIAL, root=root)
    if result.stdout.strip():
        raise TemperError(
            f"root {root!r} holds {result.stdout.decode(errors='replace').strip()}: take our packages out of it"
        )
    return "a shell, and none of our packages"


async def _session(sandbox: Sandbox) -> str:
    async with await sandbox.session({"f": b"kept"}, _TRIAL) as session:
        snapshot = await session.snapshot()
        await session.remove("f")
        await session.roll_back(snapshot)
        if await session.read("f") != b"kept":
            raise TemperError("a rollback lost a file: overlayfs does not do what it should here")
    return "snapshot and rollback"
