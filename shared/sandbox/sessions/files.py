"""Reading and writing a workspace from outside.

Invariant: a path is resolved by the kernel beneath the workspace and through no link (openat2 with RESOLVE_BENEATH,
RESOLVE_NO_SYMLINKS, RESOLVE_NO_MAGICLINKS: openat2(2)), so whatever a hostile program puts there or swaps meanwhile,
no byte outside is read or written; only plain files are opened, and never more than asked for is read.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from shared.errors import TemperError
from shared.sandbox.command import inside
from shared.sandbox.faults import SandboxFault

Kind = Literal["file", "folder", "link", "other"]
_LIBC = ctypes.CDLL(None, use_errno=True)
_SYS_OPENAT2 = 437
_RESOLVE_NO_XDEV, _RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 1, 2, 4, 8
_RESOLVE = _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH | _RESOLVE_NO_XDEV
_RETRIES = 64
"""openat2 answers EAGAIN where a rename raced with it (openat2(2), RESOLVE_BENEATH)."""
MOST_ENTRIES = 100_000
LONGEST_PATH = 4000
"""Bytes of a path that is listed, under the kernel's own limit of one call (PATH_MAX, 4096). Without it ten thousand
folders inside each other, with names of 255 bytes, are 12 GB of paths."""


class WorkspaceRefusal(TemperError):
    """A file of the workspace that cannot be read or written as asked; the policy's affair, not a fault of ours."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a workspace. `mode`: permission bits. `target`: of a link, as written."""

    path: str
    kind: Kind
    mode: int
    size: int
    mtime_ns: int
    links: int
    target: str = ""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(folder: int, path: str, flags: int, mode: int = 0) -> int:
    """A descriptor of `path` below the folder behind the descriptor `folder`. Raises `OSError`."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, _RESOLVE)
    for _ in range(_RETRIES):
        done = _LIBC.syscall(_SYS_OPENAT2, folder, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if done >= 0:
            return int(done)
        number = ctypes.get_errno()
        if number != errno.EAGAIN:
            break
    raise OSError(number, os.strerror(number), path)


def read_file(folder: int, path: str, most_bytes: int) -> bytes:
    """The contents of a plain file. Raises `WorkspaceRefusal` for anything else, and past `most_bytes`."""
    with _refusals(path), contextlib.ExitStack() as stack:
        descriptor = open_beneath(folder, inside(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        stack.callback(os.close, descriptor)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise WorkspaceRefusal(f"{path!r} is a {_kind(found.st_mode)}, not a plain file")
        if found.st_size > most_bytes:
            raise WorkspaceRefusal(f"{path!r} has {found.st_size} bytes: at most {most_bytes} are read")
        return _read(descriptor, path, most_bytes)


def _read(descriptor: int, path: str, most_bytes: int) -> bytes:
    parts, length = [], 0
    while chunk := os.read(descriptor, 1 << 20):
        length += len(chunk)
        if length > most_bytes:
            raise WorkspaceRefusal(f"{path!r} grew past {most_bytes} bytes while it was read")
        parts.append(chunk)
    return b"".join(parts)


def write_file(folder: int, path: str, contents: bytes, mode: int, owner: int) -> None:
    """Replaces `path` in one step, and makes the folders above it; a link of that name is replaced, not followed.

    Raises `WorkspaceRefusal` where a part of the path is a link or no folder, or the workspace is full.
    """
    parts = PurePosixPath(inside(path)).parts
    with _refusals(path), contextlib.ExitStack() as stack:
        above = _folder_for(folder, parts[:-1], owner)
        stack.callback(os.close, above)
        draft = f".{secrets.token_hex(8)}.part"
        try:
            _write(above, draft, contents, mode, owner)
            os.rename(draft, parts[-1], src_dir_fd=above, dst_dir_fd=above)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=above)
            raise


def write_files(folder: int, files: Mapping[str, bytes], owner: int) -> None:
    """Each as `write_file`, readable by all. Raises `WorkspaceRefusal` at the first that is refused."""
    for path, contents in files.items():
        write_file(folder, path, contents, 0o644, owner)


def _write(above: int, name: str, contents: bytes, mode: int, owner: int) -> None:
    descriptor = open_beneath(above, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(contents)
        file.flush()
        os.fchown(file.fileno(), owner, owner)
        os.fchmod(file.fileno(), mode & 0o777)


def _folder_for(folder: int, parts: tuple[str, ...], owner: int) -> int:
    """The folder at `parts`, made where it is not there. The caller closes it."""
    here = os.dup(folder)
    try:
        for part in parts:
            try:
                os.mkdir(part, 0o755, dir_fd=here)
                os.chown(part, owner, owner, dir_fd=here, follow_symlinks=False)
            except FileExistsError:
                pass
            below = open_beneath(here, part, os.O_RDONLY | os.O_DIRECTORY)
            os.close(here)
            here = below
    except BaseException:
        os.close(here)
        raise
    return here


def make_folder(folder: int, path: str, owner: int) -> None:
    """And those above it. Raises `WorkspaceRefusal`."""
    with _refusals(path):
        os.close(_folder_for(folder, PurePosixPath(inside(path)).parts, owner))


def make_link(folder: int, path: str, target: str, mtime_ns: int, owner: int) -> None:
    """A symbolic link in a folder that is there; `target` as it is to be written. Raises `WorkspaceRefusal`."""
    with _refusals(path), _above(folder, path) as (above, name):
        os.symlink(target, name, dir_fd=above)
        os.chown(name, owner, owner, dir_fd=above, follow_symlinks=False)
        os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=above, follow_symlinks=False)


def set_mode_and_time(folder: int, path: str, mode: int, mtime_ns: int) -> None:
    """Of a file or folder that is there; no link is followed. Raises `WorkspaceRefusal`."""
    with _refusals(path), contextlib.ExitStack() as stack:
        descriptor = open_beneath(folder, inside(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        stack.callback(os.close, descriptor)
        os.fchmod(descriptor, mode & 0o7777)
        os.utime(descriptor, ns=(mtime_ns, mtime_ns))


def attributes(folder: int, path: str) -> list[str]:
    """Names of the extended attributes that a program gave to a file or folder, lists of access (acl(5)) among them.
    Raises `WorkspaceRefusal`."""
    with _refusals(path), contextlib.ExitStack() as stack:
        descriptor = open_beneath(folder, inside(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        stack.callback(os.close, descriptor)
        try:
            found = os.listxattr(descriptor)
        except OSError as error:
            if error.errno == errno.ENOTSUP:
                return []
            raise
    return [name for name in found if name.startswith(("user.", "system."))]


@contextlib.contextmanager
def _above(folder: int, path: str) -> Iterator[tuple[int, str]]:
    """The folder that `path` is in, and its name there."""
    parts = PurePosixPath(inside(path)).parts
    above = open_beneath(folder, str(PurePosixPath(*parts[:-1])) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield above, parts[-1]
    finally:
        os.close(above)


def remove_file(folder: int, path: str) -> None:
    """One name less; a link itself goes, not what it points to. Raises `WorkspaceRefusal`."""
    with _refusals(path), _above(folder, path) as (above, name):
        os.unlink(name, dir_fd=above)


def listing(folder: int, most_entries: int = MOST_ENTRIES) -> list[Entry]:
    """All names below, sorted by path, no link followed. One descriptor is open at a time, however many folders wait.

    Raises `WorkspaceRefusal` past `most_entries` and past `LONGEST_PATH`, `SandboxFault` where a folder that is there
    cannot be opened.
    """
    found: list[Entry] = []
    pending = [""]
    while pending:
        prefix = pending.pop()
        here = _folder_of(folder, prefix)
        if here is None:
            continue
        try:
            for entry in _entries(here, prefix):
                found.append(entry)
                if len(found) > most_entries:
                    raise WorkspaceRefusal(f"the workspace has over {most_entries} names")
                if len(os.fsencode(entry.path)) > LONGEST_PATH:
                    raise WorkspaceRefusal(f"the workspace has a path of over {LONGEST_PATH} bytes")
                if entry.kind == "folder":
                    pending.append(f"{entry.path}/")
        finally:
            os.close(here)
    return sorted(found, key=lambda entry: entry.path)


def _folder_of(folder: int, prefix: str) -> int | None:
    """None for one that went, or became something else, since its name was read."""
    try:
        return open_beneath(folder, prefix or ".", os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise SandboxFault(
            f"folder {prefix[:200]!a} of a workspace cannot be listed: {error.strerror}"
        ) from error


def _entries(here: int, prefix: str) -> Iterator[Entry]:
    with os.scandir(here) as names:
        for name in names:
            try:
                seen = name.stat(follow_symlinks=False)
                kind = _kind(seen.st_mode)
                target = os.readlink(name.name, dir_fd=here) if kind == "link" else ""
            except FileNotFoundError:
                continue
            yield Entry(
                prefix + name.name, kind, stat.S_IMODE(seen.st_mode), seen.st_size, seen.st_mtime_ns,
                seen.st_nlink, target,
            )  # fmt: skip


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


@contextlib.contextmanager
def _refusals(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EXDEV):
            raise WorkspaceRefusal(
                f"{path!r} goes through a link or out of the workspace: no link is followed"
            ) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise WorkspaceRefusal(f"{path!r} was not written: the workspace is full") from error
        if error.errno in (
            errno.ENOENT,
            errno.ENOTDIR,
            errno.EISDIR,
            errno.ENAMETOOLONG,
            errno.ENXIO,
            errno.EACCES,
        ):
            raise WorkspaceRefusal(f"{path!r}: {os.strerror(error.errno)}") from error
        raise SandboxFault(f"workspace file {path!r}: {error}") from error
