"""What is replayed, and under which configuration.

Invariant: everything but the objective, the name and the place is as the run had it: what differs in the result is
what was changed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.contracts import Step
from shared.errors import ConfigError
from shared.plain_errors import said
from shared.settings import Settings, parse_settings
from temper.audit.lineage import surviving

OWN = "replayed"
"""Name of an objective that a file gives."""


@dataclass(frozen=True, slots=True)
class Wish:
    """As the command line has it. `objective`: empty for the run's own; `changes`: `key=value` each."""

    first: int
    """The checkpoint's step."""
    steps: int = 0
    """0: all there are."""
    objective: str = ""
    changes: tuple[str, ...] = ()

    @property
    def anew(self) -> bool:
        return bool(self.objective or self.changes)


def recorded_steps(told: Sequence[Step], wish: Wish, run: str) -> tuple[Step, ...]:
    """Those of the surviving lineage after the checkpoint. Raises `ConfigError` where there is none, or a gap."""
    after = [step for step in surviving(told) if step.step > wish.first]
    chosen = tuple(after[: wish.steps] if wish.steps else after)
    if not chosen:
        last = max((step.step for step in told), default=0)
        raise ConfigError(f"run {run!r} has recorded no step after {wish.first}: its last is {last}")
    if [step.step for step in chosen] != list(range(wish.first + 1, wish.first + 1 + len(chosen))):
        raise ConfigError(
            f"the records of run {run!r} after step {wish.first} have a gap: retention has deleted some; "
            "begin at a later checkpoint"
        )
    return chosen


def replay_settings(settings: Settings, wish: Wish, folder: Path, stages: Sequence[int]) -> Settings:
    """The configuration of a replay in `folder`. `stages`: indices of those that are replayed.

    The objective is that of the first of them, and of later ones of its kind. Raises `ConfigError`.
    """
    document: dict[str, Any] = settings.model_dump(mode="json")
    document["run"] |= {"name": folder.name, "folder": str(folder.parent.absolute())}
    document["storage"]["uri"] = ""
    document["publishing"]["deltas"] = "never"
    document["telemetry"]["traces"] = "none"
    if wish.anew:
        first = settings.stages[stages[0]]
        chosen = _objective(document, wish, first.objective.model_dump(mode="json"))
        for index in stages:
            if settings.stages[index].kind == first.kind:
                document["stages"][index]["objective"] = chosen
    return parse_settings(document)


def _objective(document: dict[str, Any], wish: Wish, before: dict[str, Any]) -> dict[str, Any]:
    """A preset or one of the run's own by name, a file of one, or the stage's own with changes."""
    overrides = dict(_change(text) for text in wish.changes)
    if not wish.objective:
        return {**before, "overrides": {**before["overrides"], **overrides}}
    if not wish.objective.endswith(".toml"):
        return {"preset": wish.objective, "overrides": overrides}
    try:
        document["objectives"][OWN] = tomllib.loads(Path(wish.objective).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        what = "no such file" if isinstance(error, FileNotFoundError) else said(error)
        raise ConfigError(
            f"--objective {wish.objective}: {what}; give a preset, or a TOML file of keys such as "
            'preset = "dapo" and clip_high = 0.3'
        ) from error
    return {"preset": OWN, "overrides": overrides}


def _change(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text!r}: write key=value, such as --set clip_high=0.3")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()  # a word without quotes
