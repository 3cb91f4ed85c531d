"""Process 2 of one check: gives up all it can, waits for its job, and runs it.

Invariant: when the first line of a source runs, the process is a user that nothing else is, without capabilities or a
way to any (empty bounding set, no_new_privs), under the system call filter and its limits, in its cgroups, and holds
the descriptors of its job and no other.

The hash seed is 0 in every check (PYTHONHASHSEED at the server's start): sets and dicts of strings have one order, so a
check is repeatable. `random` and numpy's global state are seeded anew from the kernel.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not `signal`: its enums cost a child a dozen pages
import atexit
import ctypes
import json
import linecache
import os
import random
import resource
import socket
import sys
import threading
import traceback
import types
from typing import Any, NoReturn

from shared.sandbox.prewarmed.inside.kernel import (
    MAX_MESSAGE,
    MOST_DESCRIPTORS,
    NEWCGROUP,
    PLACES,
    PR_SET_DUMPABLE,
    PR_SET_SECCOMP,
    Filter,
    check,
    close_all_but,
    prctl,
    receive,
    tell,
    tell_error,
    unshare,
)

SECCOMP_MODE_FILTER = 2


def as_runner(
    request: dict[str, Any], leash: socket.socket, held: int, joins: list[int], program: Filter
) -> NoReturn:
    try:
        join(joins)
        close_all_but(leash.fileno(), held)
        settle(request, program)
        tell(leash, b'{"ready": true}')
        job, source = take_job(leash)
        # The last ones: more descriptors were open until now than a check may have.
        limit((resource.RLIMIT_NOFILE, request["open_files"]), (resource.RLIMIT_CPU, job["cpu_s"]))
    except BaseException as error:  # noqa: BLE001 - a fork of the server must not return into it
        tell_error(leash, error)
        os._exit(1)
    run(job["arguments"], source)


def join(groups: list[int]) -> None:
    for group in groups:
        os.write(group, b"0")
    check(unshare(NEWCGROUP), "new cgroup namespace")


def settle(request: dict[str, Any], program: Filter) -> None:
    """Limits, and no way back."""
    os.setsid()
    limit(
        (resource.RLIMIT_FSIZE, request["file_bytes"]),
        (resource.RLIMIT_NPROC, request["processes"]),
        (resource.RLIMIT_AS, request["address_space"] or resource.RLIM_INFINITY),
    )
    user = request["user"]
    os.setresgid(user, user, user)
    # From user 0 to another: all capabilities are gone with it, and the bounding set is empty.
    os.setresuid(user, user, user)
    prctl(PR_SET_DUMPABLE, 1)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    reseed()
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "load the filter")


def limit(*pairs: tuple[int, int]) -> None:
    for kind, value in pairs:
        resource.setrlimit(kind, (value, value))


def reseed() -> None:
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(int.from_bytes(os.urandom(4), "little"))


def take_job(leash: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Waits for it; the leash is closed and the descriptors are in their places afterwards."""
    body, descriptors = receive(leash)
    if not body:
        os._exit(0)
    job = json.loads(body)
    source = bytearray()
    while len(source) < job["source"]:
        piece = leash.recv(MAX_MESSAGE)
        if not piece:
            os._exit(0)
        source += piece
    leash.close()
    for number, descriptor in enumerate(descriptors):
        # None is in another's way: the lowest that can come is 3, so each is above its own place and those before.
        os.dup2(descriptor, number)
    os.closerange(len(descriptors), MOST_DESCRIPTORS)
    return job, bytes(source)


def run(arguments: list[str], source: bytes) -> NoReturn:
    """As `python name` would, but for the teardown of modules: exit handlers run, buffers are flushed."""
    name = arguments[0]
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=name, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    sys.argv[:] = arguments
    sys.path.insert(0, os.fsdecode(PLACES[-1]))
    code = 1
    try:
        text = source.decode(errors="replace")
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)
        code = 0
    except SystemExit as leaving:
        code = exit_code(leaving.code)
    except BaseException as error:  # noqa: BLE001 - whatever it raises is shown as Python shows it
        show(error)
    leave(code)


def show(error: BaseException) -> None:
    """By the program's own hook where it set one; our frame, the outermost, is not part of its traceback."""
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    hook = traceback.print_exception if sys.excepthook is sys.__excepthook__ else sys.excepthook
    try:
        hook(type(error), error.with_traceback(trace), trace)
    except BaseException:  # noqa: BLE001 - a broken hook changes nothing: it ends with 1
        traceback.print_exc()


def exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)  # noqa: T201
    return 1


def leave(code: int) -> NoReturn:
    for step in (threading._shutdown, atexit._run_exitfuncs, flush_output):  # type: ignore[attr-defined]
        try:
            step()
        except SystemExit as leaving:
            code = exit_code(leaving.code)
        except BaseException:  # noqa: BLE001 - the end is near whatever happens
            code = code or 120
    os._exit(code)


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
