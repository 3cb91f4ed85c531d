"""The files that an attempt left in its workspace, for whoever judges it.

Invariant: they are read after the last command has ended, through no link; what is left out for its size or kind is
counted under a name of its own, so that a verdict never rests on a cut that nobody was told of.

They travel as text in the trajectory's artifacts, `workspace/<path>` each: a check needs no store for them, and a
message that grows too large by them goes to the store as a whole, as every other does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.rollout.context.notes import FOLDER
from services.rollout.tools.tool import whole_text
from shared.sandbox.sessions.files import Entry, WorkspaceRefusal
from shared.sandbox.sessions.session import Session

PREFIX = "workspace/"
LEFT_OUT = "workspace"
"""The key under which is said how many files are not there."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """`files` at most, `file_bytes` of each, `all_bytes` together."""

    files: int = 64
    file_bytes: int = 128 * 1024
    all_bytes: int = 512 * 1024


async def left_behind(session: Session, given: Mapping[str, str], keeping: Keeping) -> dict[str, str]:
    """Text files that were made or changed, and beside them the names of those that are gone. Raises `SandboxFault`."""
    try:
        entries = await session.listing()
    except WorkspaceRefusal as refusal:
        return {LEFT_OUT: f"not read: {refusal}"}
    files = [entry for entry in entries if entry.kind == "file" and not entry.path.startswith(f"{FOLDER}/")]
    found: dict[str, str] = {}
    left_out = sum(entry.kind in ("link", "other") for entry in entries)
    room = keeping.all_bytes
    for entry in files:
        full = (
            len(found) >= keeping.files and entry.path not in given
        )  # thousands of files cost one look each
        text = None if full else await _text(session, entry, min(keeping.file_bytes, room))
        if text is not None and given.get(entry.path) == text:
            continue
        if text is None or len(found) >= keeping.files:
            left_out += 1
            continue
        room -= entry.size
        found[PREFIX + entry.path] = text
    gone = sorted(set(given) - {entry.path for entry in files})
    if left_out or gone:
        parts = [f"{left_out} left out"] if left_out else []
        found[LEFT_OUT] = "; ".join([*parts, *(f"deleted: {path}" for path in gone)])
    return found


async def _text(session: Session, entry: Entry, most_bytes: int) -> str | None:
    """None for a file that is too large, or no text, or has a name that is none: no message can carry it."""
    if entry.size > most_bytes or whole_text(entry.path) != entry.path:
        return None
    try:
        return (await session.read(entry.path, most_bytes)).decode("utf-8")
    except (WorkspaceRefusal, UnicodeDecodeError):
        return None
