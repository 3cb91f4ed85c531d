"""The keeper: parent of every jail, owner of every mount.

Invariant: when our process ends, however it ends, this one ends; it is process 1 of its own pid namespace, so the
kernel then kills all that runs below it, and its mount namespace takes every mount along. Nothing here is persistent.

Standard library only, one thread: it is started with `python -I -S`, arguments FD and FOLDER, and forks often, so it
stays small. It trusts its peer completely and no jailed program can reach its socket.

Messages are JSON objects on a SEQPACKET socket, descriptors beside them:
`{"id", "op": "spawn", "argv", "env", "fds": [numbers in the child], "joins": n}`: the last n descriptors passed are
`cgroup.procs` files that the child joins before it starts the program; `{"id", "op": "signal", "pid", "signal"}`;
`{"id", "op": "do", "steps": [[name, …], …]}`: file system steps in order; `{"id", "op": "open", "path"}`: a folder's
descriptor comes back; `{"id", "op": "space", "paths"}`: `{"space": [[block size, blocks, free, files, free], …]}`.
A spawn with `"init": {"look_s"}` is made in a pid namespace of its own, under `keeper/init.py`:
its first descriptor is then the report pipe, and the process that is named and ends is that init. With `"door": port`
it has a network namespace of its own, and the listening socket at that port of its loopback comes back. Every request is
answered by `{"id", …}` or `{"id", "error", "errno"}`; the end of a spawned process by
`{"exit": pid, "status": wait status, "cpu": seconds}`.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import json
import os
import select
import shutil
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from shared.sandbox.keeper.init import run_init
from shared.sandbox.keeper.kernel import (
    CLONE_NEWNS,
    CLONE_NEWPID,
    LIBC,
    MS_BIND,
    MS_NOATIME,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    PR_SET_PDEATHSIG,
    check,
    detach,
    enter,
    mount,
    passed_descriptors,
    unshare,
)  # fmt: skip
from shared.sandbox.keeper.mounts import own_mounts
from shared.sandbox.keeper.network import hand_over, open_door, take_over

MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
AT_RECURSIVE, AT_FDCWD = 0x8000, -100
SYS_MOUNT_SETATTR = 442
MAX_MESSAGE = 1 << 18
MAX_DESCRIPTORS = 32


def bind_read_only(source: str, target: str) -> None:
    """With everything mounted below it: nothing in it can be written, no set-uid bit and no device counts."""
    mount(source, target, "", MS_BIND | MS_REC, "")
    attributes = (ctypes.c_uint64 * 4)(
        MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0, MS_PRIVATE, 0
    )
    done = LIBC.syscall(
        SYS_MOUNT_SETATTR,
        AT_FDCWD,
        target.encode(),
        AT_RECURSIVE,
        ctypes.byref(attributes),
        ctypes.sizeof(attributes),
    )
    check(done, f"make {target} read-only")


def bind_device(source: str, target: str) -> None:
    """It can be read and written; its inode, which every run shares, cannot: not its times either, in which one run
    could leave a word for another."""
    mount(source, target, "", MS_BIND, "")
    mount("", target, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC, "")


def make_folder(path: str, mode: int, owner: int) -> None:
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(mode)
    os.chown(path, owner, owner)


def make_file(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def make_text(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def overlay(store: str, lower: str, upper: str, target: str) -> None:
    """Layers by name below `store`, newest first, colons between: relative, since the options share one page.

    `index` keeps hard links one file when it is changed, `redirect_dir` lets folders of lower layers be renamed,
    `volatile` skips the sync at unmounting: all of it is in memory.
    """
    options = f"lowerdir={lower},upperdir={upper},workdir=w/{upper},index=on,redirect_dir=on,metacopy=off,xino=off,volatile"
    os.chdir(store)
    try:
        mount("overlay", target, "overlay", MS_NOATIME, options)
    finally:
        os.chdir("/")


def room(path: str, size: int, inodes: int, spare: int) -> None:
    """A tmpfs of `inodes` names, or of as many as are in use and `spare`; what its user filled it with stays."""
    now = os.statvfs(path)
    most = max(inodes, now.f_files - now.f_ffree + spare)
    mount("temper-session", path, "tmpfs", MS_REMOUNT, f"size={size},nr_inodes={most}")


def make_like(path: str, model: str) -> None:
    """A folder with the mode, owner and times of another."""
    found = Path(model).stat()
    make_folder(path, found.st_mode & 0o7777, found.st_uid)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def settle(merged: str, index: str) -> None:
    """Before a layer is frozen: every name of a changed hard-linked file comes up with it.

    The index that ties them together stays behind with the layer's work folder; a name left in an older layer would
    show the old contents. An empty index, the common case, costs one look.
    """
    if next(Path(index).iterdir(), None) is None:
        return
    for folder, _, names in os.walk(merged):
        for name in names:
            path = f"{folder}/{name}"
            found = os.lstat(path)
            if found.st_nlink > 1 and stat.S_ISREG(found.st_mode):
                Path(path).chmod(found.st_mode & 0o7777)


def discard(path: str, trash: str) -> None:
    """Out of the way at once, removed by a process of its own: a million files must not keep the others waiting."""
    Path(trash).mkdir(exist_ok=True)
    aside = Path(path).rename(f"{trash}/{time.monotonic_ns()}")
    if os.fork() == 0:
        # Not rmtree: it recurses, and a hostile tree is deeper than Python's stack.
        os.execv("/bin/rm", ["rm", "-rf", str(aside)])


STEPS: dict[str, Callable[..., object]] = {
    "folder": make_folder,
    "file": make_file,
    "text": make_text,
    "mount": mount,
    "bind_read_only": bind_read_only,
    "device": bind_device,
    "unmount": detach,
    "link": os.symlink,
    "remove": shutil.rmtree,
    "overlay": overlay,
    "room": room,
    "like": make_like,
    "settle": settle,
    "discard": discard,
}


class Keeper:
    """Serves one peer until its socket closes."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._children: set[int] = set()
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def serve(self) -> None:
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._peer, select.POLLIN)
        poll.register(woken, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == woken:
                    with contextlib.suppress(BlockingIOError):
                        os.read(woken, 4096)
                    self._reap()
                elif not self._answer():
                    return

    def _answer(self) -> bool:
        """False once the peer is gone."""
        try:
            body, ancillary, _, _ = self._peer.recvmsg(MAX_MESSAGE, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS))
        except ConnectionError:
            return False
        if not body:
            return False
        descriptors = passed_descriptors(ancillary)
        request: dict[str, Any] = json.loads(body)
        try:
            answer, passed = self._do(request, descriptors)
        except (OSError, ValueError) as error:
            # ValueError: a path or an argument that the kernel cannot be given (NUL, lone surrogates).
            answer, passed = {"error": str(error), "errno": getattr(error, "errno", 0) or 0}, None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._send({"id": request["id"], **answer}, passed)
        return True

    def _do(self, request: dict[str, Any], descriptors: list[int]) -> tuple[dict[str, Any], int | None]:
        operation = request["op"]
        if operation == "spawn":
            pid, door = self._spawn(request, descriptors)
            return {"pid": pid}, door
        if operation == "signal":
            if request["pid"] in self._children:
                os.kill(request["pid"], request["signal"])
            return {}, None
        if operation == "open":
            return {}, os.open(request["path"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if operation == "space":
            return {"space": [space(path) for path in request["paths"]]}, None
        for name, *arguments in request["steps"]:
            STEPS[name](*arguments)
        return {}, None

    def _spawn(self, request: dict[str, Any], descriptors: list[int]) -> tuple[int, int | None]:
        """The process, and the door of its network where it was asked for one.

        Raises `OSError` where the program cannot be started: known through a pipe that a good exec closes.
        """
        heard, told = os.pipe()
        near, far = socket.socketpair() if request.get("door") else (None, None)
        child = self._fork(new_pids="init" in request)
        if child == 0:
            try:
                os.close(heard)
                if far is not None:
                    hand_over(far, open_door(request["door"]))
                own_mounts(request["mounts"])
                if "init" in request:
                    run_init({**request, **request["init"]}, descriptors, told, become)
                become(request, descriptors, told)
            except BaseException as error:  # noqa: BLE001 - the child must not return: it tells, and leaves
                tell(told, error)
            finally:
                os._exit(127)
        os.close(told)
        if far is not None:
            far.close()
        with os.fdopen(heard, "rb") as pipe:
            problem = pipe.read()
        if problem:
            if near is not None:
                near.close()
            os.waitpid(child, 0)
            number, text = json.loads(problem)
            raise OSError(number, text)
        self._children.add(child)
        return child, take_over(near) if near is not None else None

    def _fork(self, new_pids: bool) -> int:
        """`new_pids`: the child is process 1 of a new pid namespace; ours is for its children only, so it is undone."""
        if not new_pids:
            return os.fork()
        unshare(CLONE_NEWPID, "a pid namespace for a run")
        child = -1
        try:
            child = os.fork()
        finally:
            if child:
                enter(self._own_pids, CLONE_NEWPID, "back into the keeper's pid namespace")
        return child

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._children:
                self._children.discard(pid)
                self._send({"exit": pid, "status": status, "cpu": usage.ru_utime + usage.ru_stime}, None)

    def _send(self, body: dict[str, Any], descriptor: int | None) -> None:
        ancillary = []
        if descriptor is not None:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        try:
            self._peer.sendmsg([json.dumps(body).encode()], ancillary)
        except (BrokenPipeError, ConnectionError):
            raise SystemExit(0) from None
        finally:
            if descriptor is not None:
                os.close(descriptor)


def space(path: str) -> list[int]:
    found = os.statvfs(path)
    return [found.f_frsize, found.f_blocks, found.f_bfree, found.f_files, found.f_ffree]


def tell(told: int, error: BaseException) -> None:
    """To the keeper, why a program was not started."""
    number = error.errno if isinstance(error, OSError) else errno.EINVAL
    os.write(told, json.dumps([number, f"{type(error).__name__}: {error}"]).encode())


def become(request: dict[str, Any], descriptors: list[int], told: int) -> NoReturn:
    """In the forked child: join the cgroups, put the descriptors in their places, start the program."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    count = len(descriptors) - request["joins"]
    for descriptor in descriptors[count:]:
        os.write(descriptor, b"0")
    # Two moves, by way of numbers above all targets: a plain dup2 could overwrite a descriptor still to be moved.
    above = max([told, *descriptors, *request["fds"]]) + 1
    staged = [os.dup2(descriptor, above + place) for place, descriptor in enumerate(descriptors[:count])]
    kept_told = os.dup2(told, above + len(staged), inheritable=False)
    for number, descriptor in zip(request["fds"], staged, strict=True):
        os.dup2(descriptor, number)
    first_free = max(request["fds"], default=2) + 1
    os.closerange(first_free, kept_told)
    os.closerange(kept_told + 1, kept_told + 64)
    for number in range(first_free):
        if number not in request["fds"]:
            with contextlib.suppress(OSError):
                os.close(number)
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(request["argv"][0], request["argv"], request["env"])
    except OSError as error:
        tell(kept_told, error)
    os._exit(127)


def main() -> int:
    peer = socket.socket(fileno=int(sys.argv[1]))
    folder = sys.argv[2]
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.umask(0o022)
    try:
        check(LIBC.unshare(CLONE_NEWNS | CLONE_NEWPID), "new mount and pid namespaces")
    except OSError as error:
        peer.send(json.dumps({"error": str(error), "errno": error.errno or 0}).encode())
        return 1
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    child = os.fork()
    if child:
        peer.close()
        os.closerange(0, 3)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        mount("none", "/", "", MS_REC | MS_PRIVATE, "")
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV, "")
        # Without nosuid and nodev: a jail may not remount read-only what would lose them (they are locked in its
        # user namespace). Everything shown in a root has them on its own mount.
        mount("temper", folder, "tmpfs", 0, "mode=0711")
        peer.send(json.dumps({"ready": True}).encode())
    except OSError as error:
        peer.send(json.dumps({"error": str(error), "errno": error.errno or 0}).encode())
        return 1
    Keeper(peer).serve()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
