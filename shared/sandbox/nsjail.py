"""The command line of one jail.

Invariant: whatever is not asked for is off: no network, no capability, no writable place but the declared ones, no
descriptor above those passed. nsjail's own defaults that bite (1 MiB files, 32 descriptors, no seccomp, a proc that
shows the cgroup tree) are all set here.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shared.sandbox.command import WORK
from shared.sandbox.limits import MIB, Limits

INSIDE_UID = 1000
HOSTNAME = "jail"


@dataclass(frozen=True, slots=True)
class Jail:
    """One jail. `work` is a folder outside that is bound to /work, writable; empty: a fresh tmpfs is there."""

    root: str
    uid: int
    """Outside; used by no other jail at the same time and by nothing else ever."""
    limits: Limits
    work: str = ""
    tmp: str = ""
    """As `work`, for /tmp."""
    shm: str = ""
    """As `work`, for /dev/shm."""
    proc: str = ""
    """A proc file system outside that is bound to /proc: the jail then stays in the pid namespace it is started in,
    where a process 1 of ours is (`keeper/init.py`); empty: a namespace of its own, the program is its process 1."""
    inside_uid: int = INSIDE_UID
    more_users: int = 0
    """As many outside users after `uid` are the inside ones from INSIDE_UID up: for the fork server's children."""
    keep_capabilities: bool = False
    seccomp: str = ""
    """Kafel text; empty only for the fork server, whose children bring their own."""
    descriptors: Sequence[int] = ()
    """Above 2, kept open under their numbers."""
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: str = WORK
    address_space_mb: int = 0
    """RLIMIT_AS of each process; 0 is none (a cgroup counts memory)."""
    user_processes: int = 0
    """RLIMIT_NPROC, of the whole uid; 0 is a little above the limit, so that a cgroup is met first and counts it."""
    log_descriptor: int = 2
    own_network: bool = True
    """A new one without interfaces; not: the one that nsjail is started in."""
    niceness: int = 0
    """nsjail's own choice is 19: beside any other work a program then gets a hundredth of a core, and misses limits of
    wall time through no fault of its own (seen: 100 ms of CPU took 1.5 s)."""


def command_line(binary: str, jail: Jail, argv: Sequence[str]) -> list[str]:
    """`binary … -- argv`. The caller keeps the wall clock; nsjail's own is a backstop one minute later."""
    limits = jail.limits
    line = [
        binary, "-Mo", "--log_fd", str(jail.log_descriptor),
        "--user", f"{jail.inside_uid}:{jail.uid}:1", "--group", f"{jail.inside_uid}:{jail.uid}:1",
        "--hostname", HOSTNAME, "--chroot", jail.root, "--cwd", jail.cwd,
        "--time_limit", str(int(limits.wall_s) + 60),
        "--rlimit_as", str(jail.address_space_mb) if jail.address_space_mb else "inf",
        "--rlimit_cpu", str(int(limits.cpu_s) + 2),
        "--rlimit_fsize", str(limits.file_mb),
        "--rlimit_nofile", str(_within(resource.RLIMIT_NOFILE, limits.open_files)),
        "--rlimit_nproc", str(_within(resource.RLIMIT_NPROC, jail.user_processes or limits.processes + 2)),
        "--rlimit_core", "0", "--rlimit_stack", "64",
        "--nice_level", str(jail.niceness), "--iface_no_lo",
    ]  # fmt: skip
    if not jail.own_network:
        line.append("--disable_clone_newnet")
    if jail.more_users:
        children = f"{INSIDE_UID}:{jail.uid + 1}:{jail.more_users}"
        line += ["--user", children, "--group", children]
    for place, folder in (("/tmp", jail.tmp), ("/dev/shm", jail.shm), (WORK, jail.work)):
        if folder:
            line += ["--bindmount", f"{folder}:{place}"]
        else:
            line += ["-m", f"none:{place}:tmpfs:{tmpfs_options(limits)}"]
    if jail.proc:
        line += ["--disable_clone_newpid", "--disable_proc", "--bindmount_ro", f"{jail.proc}:/proc"]
    for number in jail.descriptors:
        line += ["--pass_fd", str(number)]
    for name, value in jail.environment.items():
        line += ["--env", f"{name}={value}"]
    if jail.keep_capabilities:
        line.append("--keep_caps")
    if jail.seccomp:
        line += ["--seccomp_string", jail.seccomp]
    return [*line, "--", *argv]


def _within(kind: int, wanted: int) -> int:
    """Inside a user namespace nobody gets past our own hard limit (setrlimit(2)): a jail that asks for more is not made.
    A machine of 3 GiB gives some 11,000 processes where the fork server would like 65,538."""
    hard = resource.getrlimit(kind)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def tmpfs_options(limits: Limits) -> str:
    """Size and inodes are quotas: a full disk is ENOSPC inside, never ours."""
    return f"size={limits.disk_mb * MIB},nr_inodes={limits.inodes},mode=1777"
