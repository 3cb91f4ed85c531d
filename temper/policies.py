"""Which policy a person means: `runs/demo@best`, `runs/demo@last`, `runs/demo@12`, or a Hugging Face folder.

Invariant: what is found is complete and still there (a manifest names the weights and their digest), or it is refused in
one line that says what else there is. Nothing but the run's folder and its object store is read: no broker, no torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ConfigError, StorageError
from shared.settings import Settings
from shared.storage import ObjectStore
from temper.report.rates import SUMMARY, pass_rates

WEIGHTS, MANIFEST = "weights.safetensors", "manifest.json"
"""Names of the learner's layout: no part of it is imported here."""


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """A checkpoint of a run. `step` is also the version that its announcement had."""

    settings: Settings
    step: int
    uri: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.settings.run.name}@{self.step}"


@dataclass(frozen=True, slots=True)
class FolderPolicy:
    """A Hugging Face folder."""

    folder: Path

    def __str__(self) -> str:
        return str(self.folder)


def find_policy(text: str) -> RunPolicy | FolderPolicy:
    """Raises `ConfigError` for what names no policy, `StorageError` for a checkpoint that is damaged, `DataError` for a
    damaged summary."""
    folder, at, which = text.rpartition("@")
    if not at or Path(text).is_dir():
        folder, which = text, ""
    place = Path(folder)
    if (place / "run.toml").is_file():
        return _of_run(place, which or "last")
    if (place / "config.json").is_file():
        if which:
            raise ConfigError(f"policy {text!r}: {folder} is a Hugging Face folder: it has no @{which}")
        return FolderPolicy(place)
    raise ConfigError(
        f"policy {text!r}: {folder or '.'} is neither a run's folder (run.toml) nor a Hugging Face folder "
        "(config.json); write runs/<name>@best, runs/<name>@last, runs/<name>@<step>, or the model's folder, which "
        "`temper models prepare smollm2 FOLDER` makes of the packaged one"
    )


def _of_run(folder: Path, which: str) -> RunPolicy:
    from temper.audit.place import run_settings

    settings = run_settings(folder)
    store = ObjectStore(settings.storage_uri)
    root = f"checkpoints/{settings.run.name}"
    keys = set(store.list(f"{root}/"))
    complete = {key.split("/")[-2] for key in keys if key.endswith(f"/{MANIFEST}")}
    kept = sorted(int(name) for name in complete if name.isdecimal() and f"{root}/{name}/{WEIGHTS}" in keys)
    if not kept:
        raise ConfigError(
            f"run {settings.run.name!r} has no checkpoint with its weights in {store.uri_of(root)}"
        )
    step = _step(folder, which, kept, {int(name) for name in complete if name.isdecimal()})
    place = f"{root}/{step:08d}"
    try:
        manifest = json.loads(store.get_bytes(store.uri_of(f"{place}/{MANIFEST}")))
        sha256 = str(manifest["files"][WEIGHTS]["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"checkpoint {place}: its {MANIFEST} is damaged: {error}") from error
    return RunPolicy(settings, step, store.uri_of(f"{place}/{WEIGHTS}"), sha256)


def _step(folder: Path, which: str, kept: list[int], complete: set[int]) -> int:
    if which == "last":
        return kept[-1]
    if which == "best":
        return _best(folder, kept)
    if which.isascii() and which.isdigit() and int(which) in kept:
        return int(which)
    pruned = which.isascii() and which.isdigit() and int(which) in complete
    why = "its weights were pruned" if pruned else "no such checkpoint"
    raise ConfigError(
        f"{folder}@{which}: {why}; kept are the steps {', '.join(map(str, kept))}: "
        "name one of them, or best, or last"
    )


def _best(folder: Path, kept: list[int]) -> int:
    """The step with the highest held-out pass rate; of equal ones the later."""
    rates = pass_rates(folder)
    if rates is None:
        raise ConfigError(
            f"{folder}@best: {folder / SUMMARY} is not there yet: use @last, or make it with `temper report`"
        )
    if not rates:
        raise ConfigError(f"{folder}@best: the run has no evaluation: use @last, or @<step>")
    rate, step = max((rate, step) for step, rate in rates.items())
    if step not in kept:
        raise ConfigError(
            f"{folder}@best is step {step} ({rate:.0%} of held-out instances), whose weights were pruned; kept are the "
            f"steps {', '.join(map(str, kept))}: name one of them, and keep more with learner.keep_checkpoints"
        )
    return step
