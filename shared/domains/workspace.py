"""The files that an attempt left in its workspace, for whoever judges it.

Invariant: they are read after the last command has ended, through no link; what is left out for its size or kind is
counted, so that a verdict never rests on a cut that nobody was told of. What a domain reads back is the whole tree.

They travel as text in the trajectory's artifacts, `workspace/<path>` each: a check needs no store for them, and a
message that grows too large by them goes to the store as a whole, as every other does. What is no text file stands in
one more artifact, `workspace`, as JSON (`Rest`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol

from shared.sandbox.sessions.files import Entry, WorkspaceRefusal

PREFIX = "workspace/"
REST = "workspace"
"""The key of `Rest`."""
PLAIN_MODE = 0o644
"""Of a file of which nothing is said; task files are written with it."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """`files` at most (and as many links, folders and modes), `file_bytes` of each, `all_bytes` together."""

    files: int = 64
    file_bytes: int = 128 * 1024
    all_bytes: int = 512 * 1024


class Readable(Protocol):
    """A session, as far as it is read."""

    async def listing(self) -> list[Entry]: ...

    async def read(self, path: str, most_bytes: int = ...) -> bytes: ...


@dataclass(slots=True)
class Rest:
    """What is not a plain text file: names of the task's files that are gone (or of which the new content cannot be
    carried), links and where they point, folders in which nothing is, permission bits of files that are not 0644
    (octal), and how many names were left out."""

    deleted: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    modes: dict[str, str] = field(default_factory=dict)
    left_out: int = 0
    unread: str = ""
    """Why nothing at all could be read."""

    def text(self) -> str:
        """JSON; empty where there is nothing to say."""
        found = {name: value for name in self.__dataclass_fields__ if (value := getattr(self, name))}
        return json.dumps(found, sort_keys=True) if found else ""

    @classmethod
    def read(cls, text: str) -> Rest:
        """What `text` wrote. Raises `ValueError` for anything else: no policy writes this."""
        found: Any = json.loads(text) if text else {}
        if not isinstance(found, dict) or set(found) - set(cls.__dataclass_fields__):
            raise ValueError(f"the artifact {REST!r} is none of ours: {text[:80]!r}")
        return cls(**found)


async def left_behind(
    session: Readable, given: Mapping[str, str], keeping: Keeping, ignored: Sequence[str] = ()
) -> dict[str, str]:
    """Text files that were made or changed, and the rest. `ignored`: folders of ours. Raises `SandboxFault`."""
    try:
        entries = await session.listing()
    except WorkspaceRefusal as refusal:
        return {REST: Rest(unread=str(refusal)).text()}
    entries = [entry for entry in entries if not _below(entry.path, ignored)]
    files = [entry for entry in entries if entry.kind == "file"]
    rest = _rest(entries, given, keeping)
    found: dict[str, str] = {}
    room = keeping.all_bytes
    for entry in files:
        # Thousands of files cost one look each.
        full = len(found) >= keeping.files and entry.path not in given
        text = None if full else await _text(session, entry, min(keeping.file_bytes, room))
        if text is not None and given.get(entry.path) == text:
            continue
        if text is None or len(found) >= keeping.files:
            rest.left_out += 1
            if entry.path in given:  # what it was must not be taken for what it is
                rest.deleted = sorted([*rest.deleted, entry.path])
            continue
        room -= entry.size
        found[PREFIX + entry.path] = text
    said = rest.text()
    return {**found, REST: said} if said else found


def tree_of(given: Mapping[str, str], artifacts: Mapping[str, str]) -> list[dict[str, Any]]:
    """The whole tree that an attempt left, as the `found` of a `state_diff` request: what it was given, with what
    became of it. Every file has its mode. Raises `ValueError` where the artifacts are none of `left_behind`."""
    rest = Rest.read(artifacts.get(REST, ""))
    files = {path: text for path, text in given.items() if path not in rest.deleted}
    files |= {name.removeprefix(PREFIX): text for name, text in artifacts.items() if name.startswith(PREFIX)}
    plain = f"{PLAIN_MODE:o}"
    found: list[dict[str, Any]] = [
        {"path": path, "text": text, "mode": rest.modes.get(path, plain)} for path, text in files.items()
    ]
    found += [{"path": path, "kind": "link", "target": target} for path, target in rest.links.items()]
    found += [{"path": path, "kind": "folder"} for path in rest.folders]
    return sorted(found, key=lambda entry: str(entry["path"]))


def files_of(given: Mapping[str, str], artifacts: Mapping[str, str]) -> dict[str, str]:
    """Only its text files, by path."""
    return {str(entry["path"]): entry["text"] for entry in tree_of(given, artifacts) if "text" in entry}


def incomplete(artifacts: Mapping[str, str]) -> str:
    """Why the tree is not all that is in the workspace, or nothing."""
    rest = Rest.read(artifacts.get(REST, ""))
    if rest.unread:
        return f"the workspace could not be read: {rest.unread}"
    return f"{rest.left_out} names in the workspace are no text, or too many" if rest.left_out else ""


def _rest(entries: Sequence[Entry], given: Mapping[str, str], keeping: Keeping) -> Rest:
    rest = Rest(left_out=sum(entry.kind == "other" for entry in entries))
    filled = {str(folder) for entry in entries for folder in PurePosixPath(entry.path).parents}
    for entry in entries:
        mode = entry.kind == "file" and entry.mode != PLAIN_MODE
        if not (mode or entry.kind == "link" or (entry.kind == "folder" and entry.path not in filled)):
            continue
        kept = len(rest.links) + len(rest.folders) + len(rest.modes)
        if kept >= keeping.files or not _carried(entry.path) or not _carried(entry.target):
            rest.left_out += entry.kind != "file"
        elif entry.kind == "link":
            rest.links[entry.path] = entry.target
        elif entry.kind == "folder":
            rest.folders.append(entry.path)
        else:
            rest.modes[entry.path] = f"{entry.mode & 0o7777:o}".rjust(3, "0")
    rest.deleted = sorted(set(given) - {entry.path for entry in entries if entry.kind == "file"})
    return rest


async def _text(session: Readable, entry: Entry, most_bytes: int) -> str | None:
    """None for a file that is too large, or no text, or has a name that is none: no message can carry it."""
    if entry.size > most_bytes or not _carried(entry.path):
        return None
    try:
        return (await session.read(entry.path, most_bytes)).decode("utf-8")
    except (WorkspaceRefusal, UnicodeDecodeError):
        return None


def _carried(text: str) -> bool:
    """Whether a message can hold it: names are bytes on a disk."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
