"""What a replay leaves in its folder, and how it is read again.

Invariant: `replay.json` is written last: a folder with it is of a replay that came to its end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from shared.contracts import Step, encode
from shared.errors import DataError, StorageError
from shared.plain_errors import said
from temper.replay.compare import ComparedStep, Side
from temper.report.summary import Summary, write_summary

RECORD, STEPS, SUMMARY = "replay.json", "steps.jsonl", "summary.json"


@dataclass(frozen=True, slots=True)
class Replayed:
    folder: Path
    steps: tuple[ComparedStep, ...]
    anew: bool
    """Under another objective: differences are what was asked for."""
    processes: int
    """Of the learner that recorded the run; a replay is one."""

    @property
    def same(self) -> bool:
        return all(step.same for step in self.steps)


def write_record(found: Replayed, summary: Summary, made: Sequence[Step], about: dict[str, object]) -> None:
    """Raises `StorageError`."""
    document = {
        **about, "anew": found.anew, "processes": found.processes, "same": found.same, "steps": [asdict(step) for step in found.steps],
    }  # fmt: skip
    try:
        write_summary(summary, found.folder / SUMMARY)
        (found.folder / STEPS).write_bytes(b"".join(encode(step) + b"\n" for step in made))
        (found.folder / RECORD).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{found.folder} cannot be written: {said(error)}") from error


def read_record(folder: Path) -> Replayed | None:
    """None where `folder` is of no replay. Raises `DataError`."""
    path = folder / RECORD
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        steps = tuple(_step(one) for one in document["steps"])
        return Replayed(folder, steps, bool(document["anew"]), int(document["processes"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged: {said(error)}; replay again into another folder") from error


def _step(document: dict[str, object]) -> ComparedStep:
    sides = {name: Side(**document[name]) for name in ("recorded", "replayed")}  # type: ignore[arg-type]
    return ComparedStep(**{**document, **sides, "differs": tuple(document["differs"])})  # type: ignore
