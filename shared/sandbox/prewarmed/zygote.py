"""The fork server inside its jail: a warmed Python that never runs a program itself.

Invariant: everything a check can change is its own. Each runs in a fork with its own pid, mount, ipc, uts, network
and cgroup namespaces, its own outside user, fresh /tmp, /dev/shm, /work and /proc; memory is copied on write, and no
descriptor of the server, and no descriptor of another check, is open in it. So the server is after a thousand checks
what it was after none.

Two processes a check:

- *init*, process 1 of the new pid namespace. It makes the mounts, forks the runner, waits, counts what the runner left
  behind, kills it, reports over its *leash* and leaves; the kernel kills whatever is in a namespace whose process 1
  ends. A leash that is closed from outside has the same effect at any time.
- *runner*, process 2. It joins the check's cgroups, becomes a user that nothing else is, gives up all capabilities
  (the bounding set is empty from the start, no_new_privs is set), loads the system call filter and only then reads its
  job, the source, from the leash, closes the leash, and runs the source as `__main__`.

Init is safe from the runner and from all it starts: signals from inside a pid namespace do not reach its process 1
(pid_namespaces(7)); it is another user (kill(2) needs the same one, or CAP_KILL), it has capabilities that the runner
lacks and is not dumpable (each by itself refuses ptrace and /proc/1/mem, ptrace(2)); the filter refuses ptrace and
process_vm_*; /proc hides it (hidepid); it shares no descriptor with the runner once the source runs; and it is not in
the check's cgroup, so a bomb or a lack of memory in there does not touch it.

Standard library only; it is sent as text over descriptor 3, a SEQPACKET socket, so nothing of ours is in the jail's
file system. Then one JSON message of settings: `{"path", "imports", "modules": {name: text}, "filter": base64,
"forget": [names of environment variables]}`, answered by `{"ready", …}` or `{"error"}`. Then, for each check,
`{"id", "user", "disk_bytes", "inodes", "file_bytes", "open_files", "processes", "address_space", "look_s"}` with
descriptors: the leash, then the `cgroup.procs` files to join. It answers nothing, but for inits that ended ill:
`{"ended": id}`. On the leash: `{"ready": true}` or `{"error": text}` comes; a job `{"source": bytes, "cpu_s", "arguments"}` with the
runner's descriptors 0, 1, 2 and maybe 3 goes, then the source in pieces; where looks are asked for, `{"anon", "shmem",
"cpu", "threads", "in_tmpfs"}` comes at each; `{"status", "left", "full", "cpu_s"}` comes at the end.

The hash seed is 0 in every check (PYTHONHASHSEED): sets and dicts of strings have one order, so a check is repeatable.
`random` and numpy's global state are seeded anew from the kernel.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not `signal`: its enums cost a child a dozen pages
import array
import atexit
import base64
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import linecache
import os
import random
import resource
import select
import signal
import socket
import sys
import threading
import traceback
import types
from typing import Any, NoReturn

CONTROL = 3
NAME = b"temper-check"
"""What `ps` shows for the server and for all checks."""
MAX_MESSAGE = 1 << 16
MAX_DESCRIPTORS = 16
MOST_DESCRIPTORS = 1 << 12
"""Open at once, by the server's own limit: where there is no close_range(2), so many are closed one by one."""
TICK = os.sysconf("SC_CLK_TCK")
PLACES = (b"/tmp", b"/dev/shm", b"/work")
WAKES = (_signal.SIGCHLD, _signal.SIGIO)
WARM = (
    "abc", "array", "ast", "bisect", "cmath", "collections.abc", "contextlib", "copy", "dataclasses", "datetime",
    "decimal", "enum", "fractions", "functools", "heapq", "io", "itertools", "math", "numbers", "operator", "queue",
    "random", "re", "statistics", "string", "struct", "textwrap", "threading", "time", "types", "typing",
)  # fmt: skip
"""What checks import most. Memory costs time at each fork: with asyncio, unittest, logging, inspect and hashlib beside
these a fork and its end took 1.5 ms instead of 0.9."""

LIBC = ctypes.CDLL(None, use_errno=True)
# Found once, here: what a child looks up for itself it copies for itself.
unshare, setns, prctl, call_mount = LIBC.unshare, LIBC.setns, LIBC.prctl, LIBC.mount
CAPABILITY_VERSION_3 = 0x20080522
NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWPID, NEWNET = (
    0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 1 << 14, 1 << 18
PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 15, 22, 24, 38
SECCOMP_MODE_FILTER = 2
POLLRDHUP = 0x2000

fork = ctypes.PyDLL(None).fork
"""Without Python's own steps around it, with the interpreter's lock held: there is one thread, so nothing needs to be
put in order. `os.fork` ran `threading`'s and took 1.1 ms with the child's end, this 0.7. Random state is seeded anew in
`reseed`."""


class Filter(ctypes.Structure):
    """`struct sock_fprog` of linux/filter.h."""

    _fields_ = (("count", ctypes.c_ushort), ("code", ctypes.c_char_p))


def check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(kind: bytes, target: bytes, flags: int, data: bytes) -> None:
    if call_mount(kind, target, kind, ctypes.c_ulong(flags), data) < 0:
        check(-1, f"mount {kind!r} on {target!r}")


def receive(peer: socket.socket) -> tuple[bytes, list[int]]:
    """One message and its descriptors; empty when the other side is gone."""
    body, ancillary, _, _ = peer.recvmsg(
        MAX_MESSAGE, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS), socket.MSG_CMSG_CLOEXEC
    )
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % 4])
    return body, list(found)


def tell(peer: socket.socket, body: bytes) -> None:
    """Nobody may be there any more."""
    with contextlib.suppress(ConnectionError):
        peer.send(body)


def tell_error(peer: socket.socket, error: BaseException) -> None:
    tell(peer, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())


def close_all_but(*kept: int) -> None:
    """Of the descriptors above 2."""
    first = 3
    for number in sorted(kept):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, MOST_DESCRIPTORS)


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


# --- process 1 of a check ---


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
    """Until the runner ends or the leash is let go; then nothing else is left, and the report is sent."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, WAKES)
    fcntl.fcntl(leash, fcntl.F_SETOWN, os.getpid())
    # SIGIO when something happens on the leash: that the other side let go, or only that the job comes.
    fcntl.fcntl(leash, fcntl.F_SETFL, os.O_RDWR | os.O_ASYNC)
    poll = select.poll()
    poll.register(leash, POLLRDHUP)
    while (status := reap(runner)) is None and not poll.poll(0):
        if not request["look_s"]:
            _signal.sigwait(WAKES)
        elif _signal.sigtimedwait(WAKES, request["look_s"]) is None and has_begun(begun):
            tell(leash, look())
    if request["look_s"]:
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


# --- process 2 of a check ---


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


# --- start ---


def warm(settings: dict[str, Any]) -> None:
    """Imports, and the modules that came as text; what was only for the start is taken out of the environment."""
    sys.path += settings["path"]
    for name in (*WARM, *settings["imports"]):
        importlib.import_module(name)
    if "numpy" in settings["imports"]:
        # Imported at first use, which would be in each child, for its 13 ms.
        importlib.import_module("numpy.random")
    for name, text in settings["modules"].items():
        module = types.ModuleType(name)
        exec(compile(text, f"<{name}>", "exec", dont_inherit=True), module.__dict__)
        sys.modules[name] = module
    for name in settings["forget"]:
        os.environ.pop(name, None)


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


if __name__ == "__main__":
    raise SystemExit(main())
