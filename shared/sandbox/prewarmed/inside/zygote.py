"""The fork server inside its jail: a warmed Python that never runs a program itself.

Invariant: everything a check can change is its own. Each runs in a fork with its own pid, mount, ipc, uts, network
and cgroup namespaces, its own outside user, fresh /tmp, /dev/shm, /work and /proc; memory is copied on write, and no
descriptor of the server, and no descriptor of another check, is open in it. So the server is after a thousand checks
what it was after none.

A check is two processes: `init.py`, process 1 of the new pid namespace, and `runner.py`, process 2. Process 1 holds the
check's *leash*, a socket whose other end is outside; when that is let go, process 1 ends the check, and the kernel kills
whatever is in a pid namespace whose process 1 ends.

Standard library only; the modules of this folder are sent as text over descriptor 3, a SEQPACKET socket, so nothing of
ours is in the jail's file system. Then one JSON message of settings: `{"path", "imports", "filter": base64, "forget":
[names of environment variables]}`, answered by `{"ready", …}` or `{"error"}`. Then, for each check, `{"id", "user",
"disk_bytes", "inodes", "file_bytes", "open_files", "processes", "address_space", "look_s"}` with descriptors: the leash,
then the `cgroup.procs` files to join. It answers nothing, but for inits that ended ill: `{"ended": id}`.

On the leash: `{"ready": true}` or `{"error": text}` comes; a job `{"source": bytes, "cpu_s", "arguments"}` with the
runner's descriptors 0, 1, 2 and maybe 3 goes, then the source in pieces; where looks are asked for, `{"anon", "shmem",
"cpu", "threads", "in_tmpfs"}` comes at each; `{"status", "left", "full", "cpu_s"}` comes at the end.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
from typing import Any

from shared.sandbox.prewarmed.inside.init import as_init
from shared.sandbox.prewarmed.inside.kernel import (
    LIBC,
    NEWPID,
    PR_CAPBSET_DROP,
    PR_SET_DUMPABLE,
    PR_SET_NAME,
    PR_SET_NO_NEW_PRIVS,
    Filter,
    check,
    fork,
    prctl,
    receive,
    setns,
    tell,
    tell_error,
    unshare,
)

CONTROL = 3
NAME = b"temper-check"
"""What `ps` shows for the server and for all checks."""
CAPABILITY_VERSION_3 = 0x20080522
WARM = (
    "abc", "array", "ast", "bisect", "cmath", "collections.abc", "contextlib", "copy", "dataclasses", "datetime",
    "decimal", "enum", "fractions", "functools", "heapq", "io", "itertools", "math", "numbers", "operator", "queue",
    "random", "re", "statistics", "string", "struct", "textwrap", "threading", "time", "types", "typing",
)  # fmt: skip
"""What checks import most. Memory costs time at each fork, of which a check takes two: with asyncio, unittest, logging
and hashlib beside these, a fork and its end took 1.1 ms of CPU time instead of 0.7."""


class Server:
    """Forks inits until its control socket closes."""

    def __init__(self, control: socket.socket, program: Filter) -> None:
        self._control = control
        self._filter = program
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._inits: dict[int, int] = {}

    def serve(self) -> None:
        woken = wake_on_children()
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(woken, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == woken:
                    drain(woken)
                    self._reap()
                else:
                    body, descriptors = receive(self._control)
                    if not body:
                        return
                    self._fork(json.loads(body), descriptors)

    def _fork(self, request: dict[str, Any], descriptors: list[int]) -> None:
        leash = socket.socket(fileno=descriptors[0])
        try:
            # A process makes one child namespace at a time: back to its own first.
            check(setns(self._own, NEWPID), "return to the server's pid namespace")
            check(unshare(NEWPID), "new pid namespace")
            pid = check(fork(), "fork")
        except OSError as error:
            tell_error(leash, error)
            tell(self._control, b'{"ended": %d}' % request["id"])
        else:
            if pid == 0:
                as_init(request, leash, descriptors[1:], self._filter)
            self._inits[pid] = request["id"]
        leash.close()
        for descriptor in descriptors[1:]:
            os.close(descriptor)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                name = self._inits.pop(pid, None)
                if name is not None and status:
                    tell(self._control, b'{"ended": %d}' % name)


def wake_on_children() -> int:
    """A descriptor that can be read whenever a child has ended."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return woken


def drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def warm(settings: dict[str, Any]) -> None:
    """Imports. What was only for the start is taken out of the environment, and our own modules out of their list."""
    sys.path += settings["path"]
    for name in (*WARM, *settings["imports"]):
        importlib.import_module(name)
    if "numpy" in settings["imports"]:
        # Imported at first use, which would be in each child, for its 13 ms.
        importlib.import_module("numpy.random")
    for name in settings["forget"]:
        os.environ.pop(name, None)
    for name in [name for name in sys.modules if name.startswith("shared.")]:
        del sys.modules[name]


def give_up_inheritance() -> None:
    """What this process may do stays with it: nothing that is started from here can get a capability again."""
    for capability in range(64):
        prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()
    check(LIBC.capget(header, sets), "read capabilities")
    sets[2] = sets[5] = 0
    check(LIBC.capset(header, sets), "clear inheritable capabilities")


def main() -> int:
    control = socket.socket(fileno=CONTROL)
    control.set_inheritable(False)
    try:
        settings = json.loads(receive(control)[0])
        prctl(PR_SET_NAME, NAME)
        warm(settings)
        code = base64.b64decode(settings["filter"])
        give_up_inheritance()
        prctl(PR_SET_DUMPABLE, 0)
        check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
        os.setgroups([])
        gc.collect()
        gc.freeze()
        # The pages of what is frozen are shared by all children as long as nobody counts references in them.
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        tell(control, b'{"ready": true, "resident_kb": %d}' % resident)
    except BaseException as error:  # noqa: BLE001 - told, then left
        tell_error(control, error)
        return 1
    Server(control, Filter(len(code) // 8, code)).serve()
    return 0
