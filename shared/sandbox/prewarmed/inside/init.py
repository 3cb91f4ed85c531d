"""Process 1 of one check's pid namespace: makes the mounts, forks the runner, waits, counts what is left, tells, leaves.

Invariant: it has one report, sent when nothing but itself is left. It never touches what a check wrote but to count it.

It is safe from the runner and from all that it starts: signals from inside a pid namespace do not reach its process 1
(pid_namespaces(7)); it is another user (kill(2) needs the same one, or CAP_KILL); it has capabilities that the runner
lacks and is not dumpable (each by itself refuses ptrace(2) and /proc/1/mem); the filter refuses ptrace and process_vm_*;
/proc hides it (hidepid, proc(5)); it shares no descriptor with the runner once the source runs; and it is not in the
check's cgroup, so a bomb or a lack of memory in there does not touch it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not `signal`: its enums cost a child a dozen pages
import contextlib
import json
import os
import resource
import select
import socket
import time
from typing import Any, NoReturn

from shared.sandbox.prewarmed.inside.kernel import (
    CHILD_ENDED,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    NEWIPC,
    NEWNET,
    NEWNS,
    NEWUTS,
    PLACES,
    PR_SET_DUMPABLE,
    Filter,
    check,
    close_all_but,
    fork,
    hear_of_ends_alone,
    mount,
    prctl,
    signalfd,
    tell,
    tell_error,
    unshare,
)
from shared.sandbox.prewarmed.inside.runner import as_runner

TICK = os.sysconf("SC_CLK_TCK")
SIGNALS = 128
"""One `struct signalfd_siginfo`: of signals of one kind that nobody took, one is kept."""
POLLRDHUP = 0x2000


def as_init(request: dict[str, Any], leash: socket.socket, joins: list[int], program: Filter) -> NoReturn:
    try:
        _signal.set_wakeup_fd(-1)
        close_all_but(leash.fileno(), *joins)
        prctl(PR_SET_DUMPABLE, 0)
        own_namespaces(request)
        begun, held = os.pipe()
        runner = check(fork(), "fork")
        if runner == 0:
            as_runner(request, leash, held, joins, program)
        for descriptor in (held, *joins):
            os.close(descriptor)
        watch(runner, leash, begun, request)
    except BaseException as error:  # noqa: BLE001 - a fork of the server must not return into it
        tell_error(leash, error)
        os._exit(1)
    os._exit(0)


def own_namespaces(request: dict[str, Any]) -> None:
    check(unshare(NEWNS | NEWIPC | NEWUTS | NEWNET), "new namespaces")
    mount(b"none", b"/", MS_REC | MS_PRIVATE, b"")
    quota = b"size=%d,nr_inodes=%d,mode=1777" % (request["disk_bytes"], request["inodes"])
    for place in PLACES:
        mount(b"tmpfs", place, MS_NOSUID | MS_NODEV, quota)
    # Not weaker than the one that is there already: the kernel refuses that in a user namespace.
    mount(b"proc", b"/proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, b"hidepid=invisible,subset=pid")
    os.chdir(PLACES[-1])


def watch(runner: int, leash: socket.socket, begun: int, request: dict[str, Any]) -> None:
    """Until the runner ends or the leash is let go; then nothing else is left, and the report is sent.

    Woken by nothing else: the job that comes on the same leash is the runner's, and who wakes with it takes a core from
    it and from those who wait for its first byte.
    """
    _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGCHLD,))
    hear_of_ends_alone()
    ends = check(signalfd(-1, CHILD_ENDED, os.O_CLOEXEC | os.O_NONBLOCK), "a descriptor of signals")
    poll = select.poll()
    poll.register(leash, POLLRDHUP)
    poll.register(ends, select.POLLIN)
    look_s = request["look_s"]
    next_look = time.monotonic() + look_s
    while (status := reap(runner)) is None:
        events = dict(poll.poll(max(0.0, next_look - time.monotonic()) * 1000 if look_s else None))
        if leash.fileno() in events:
            break
        if ends in events:
            os.read(ends, SIGNALS)
        # By the clock: children that end all the time would keep it from every look.
        if look_s and time.monotonic() >= next_look:
            if has_begun(begun):
                tell(leash, look())
            next_look = time.monotonic() + look_s
    if look_s:
        tell(leash, look())
    left = others() - (status is None)
    full = full_place(request["file_bytes"])
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, _signal.SIGKILL)
        try:
            pid, ended = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if pid == runner:
            status = ended
    report = b'{"status": %d, "left": %d, "full": "%s", "cpu_s": %f}'
    tell(leash, report % (status or 0, left, full, cpu_of_ended()))


def has_begun(begun: int) -> bool:
    """The runner's end of this pipe closes when it has its job: looks before that would only cost."""
    poll = select.poll()
    poll.register(begun, 0)
    return bool(poll.poll(0))


def reap(runner: int) -> int | None:
    """Takes all that have ended; the runner's wait status if it is among them."""
    found = None
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == runner:
                found = status
    except ChildProcessError:
        pass
    return found


def others() -> int:
    """Processes of this namespace but for this one; ended ones are reaped already, but for a moment at the end."""
    return sum(name.isdigit() for name in os.listdir("/proc")) - 1  # noqa: PTH208


def cpu_of_ended() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def full_place(file_bytes: int) -> bytes:
    """What has no byte or no inode left, or holds a file that could not grow: Python ignores SIGXFSZ and sees EFBIG,
    so only the file itself tells. Empty where nothing is full."""
    for place in PLACES:
        space = os.statvfs(place)
        if space.f_bfree == 0 or space.f_ffree == 0:
            return place
        used = (space.f_blocks - space.f_bfree) * space.f_frsize
        if used >= file_bytes and has_file_of(place, file_bytes):
            return b"a file in " + place
    return b""


def has_file_of(place: bytes, size: int) -> bool:
    """Follows no link; what is too deep to be named is passed by."""
    folders = [place]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.stat(follow_symlinks=False).st_size >= size:
                    return True
    return False


def look() -> bytes:
    """What all processes but this one hold, in bytes, and have used; for the mode without cgroups. Of pages that are
    shared each has its share (Pss)."""
    total = {"anon": 0.0, "shmem": 0.0, "cpu": cpu_of_ended(), "threads": 0.0, "in_tmpfs": 0.0}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name == "1" or not name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError):
            fields = text_of(f"/proc/{name}/stat").rpartition(")")[2].split()
            total["cpu"] += sum(int(field) for field in fields[11:15]) / TICK
            # Ended ones that nobody waited for count: the process table holds them.
            total["threads"] += int(fields[17])
            for line in text_of(f"/proc/{name}/smaps_rollup").splitlines():
                kind, _, rest = line.partition(":")
                if kind in ("Pss_Anon", "Pss_Shmem"):
                    total["anon" if kind == "Pss_Anon" else "shmem"] += int(rest.split()[0]) * 1024
    for space in map(os.statvfs, PLACES):
        total["in_tmpfs"] += (space.f_blocks - space.f_bfree) * space.f_frsize
    return json.dumps(total).encode()


def text_of(path: str) -> str:
    with open(path, errors="replace") as file:  # noqa: PTH123
        return file.read()
