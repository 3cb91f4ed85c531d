"""A workspace as bytes, and the other way round.

Invariant: what comes out is the tree that went in: files, folders and links with their bits and times, to the
nanosecond; what the bytes cannot hold (a hard link, a pipe, an extended attribute, more than was asked for) is refused,
never left out. Read and written beneath the workspace and through no link, as everything here.

The form: one line of JSON that lists the entries, then the contents of the files one after another; deflated.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, replace
from pathlib import PurePosixPath

from shared.sandbox.sessions.files import (
    Entry,
    WorkspaceRefusal,
    attributes,
    listing,
    make_folder,
    make_link,
    read_file,
    set_mode_and_time,
    write_file,
)

_QUICK = 1
"""Deflate's level: text of 16 MiB takes a quarter of a second, and a process that is told to end has five."""


def pack(folder: int, most_bytes: int) -> bytes:
    """The tree below the descriptor `folder`. Raises `WorkspaceRefusal` where it cannot be carried."""
    entries = listing(folder)
    total = sum(entry.size for entry in entries if entry.kind == "file")
    if total > most_bytes:
        raise WorkspaceRefusal(f"the workspace holds {total} bytes: at most {most_bytes} are carried")
    for entry in entries:
        if entry.kind == "other" or (entry.kind == "file" and entry.links > 1):
            what = "a hard link" if entry.kind == "file" else "no file, folder or link"
            raise WorkspaceRefusal(f"{entry.path!r} is {what}: it cannot be carried")
        if entry.kind != "link" and (named := attributes(folder, entry.path)):
            raise WorkspaceRefusal(f"{entry.path!r} has the attribute {named[0]!r}: it cannot be carried")
    contents = {
        entry.path: read_file(folder, entry.path, most_bytes) for entry in entries if entry.kind == "file"
    }
    index = [asdict(replace(entry, size=len(contents.get(entry.path, b"")))) for entry in entries]
    return zlib.compress(b"\n".join([json.dumps(index).encode(), b"".join(contents.values())]), _QUICK)


def unpack(folder: int, packed: bytes, owner: int) -> None:
    """Into an empty workspace. Raises `WorkspaceRefusal` where it does not fit, or the bytes are none of `pack`'s."""
    try:
        head, _, rest = zlib.decompress(packed).partition(b"\n")
        entries = [Entry(**entry) for entry in json.loads(head)]
    except (zlib.error, ValueError, TypeError) as error:
        raise WorkspaceRefusal(f"these bytes are no workspace: {error}") from error
    place = 0
    for entry in entries:
        if entry.kind == "folder":
            make_folder(folder, entry.path, owner)
        elif entry.kind == "file":
            write_file(folder, entry.path, rest[place : place + entry.size], entry.mode, owner)
            place += entry.size
    # Links last: nothing above is written through one. Folders after all, and the deepest first: what is put into one
    # changes its time, and its bits may forbid more.
    for entry in entries:
        if entry.kind == "link":
            make_link(folder, entry.path, entry.target, entry.mtime_ns, owner)
    for entry in sorted(entries, key=lambda entry: len(PurePosixPath(entry.path).parts), reverse=True):
        if entry.kind != "link":
            set_mode_and_time(folder, entry.path, entry.mode, entry.mtime_ns)
