"""A replay from its checkpoint to its folder.

Invariant: the run that is replayed is only read. The replay's folder is a run's folder with checkpoints of its own
(`temper checkpoint`, `temper chat` read it) and `replay.json`; it is new, and left behind if something fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from services.learner.checkpoint import CheckpointStore
from services.learner.intake.offsets import ReplayGate
from services.learner.manifest import WEIGHTS
from services.learner.model import load_policy
from services.learner.replay.reading import read_attempts
from services.learner.replay.retrain import ReplayCheckpoints, retrain, wanted_attempts
from services.learner.stages import check_stages
from services.learner.trainer import Trainer
from shared.contracts import Step
from shared.errors import ConfigError, StorageError
from shared.settings import Settings
from shared.storage import ObjectStore
from temper.audit.place import connected
from temper.replay.compare import ComparedStep, compare
from temper.replay.plan import Wish, recorded_steps, replay_settings
from temper.replay.record import Replayed, write_record
from temper.report.collect import read_report_facts
from temper.report.summary import build_summary
from temper.up.resolved import FILE_NAME, resolve, to_toml


def replay(original: Settings, wish: Wish, folder: Path, tell: Callable[[ComparedStep], None]) -> Replayed:
    """Blocking. Raises `ConfigError`, `StorageError`, `BusError`, and as a learner does."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is there already: name another with --into, or remove it")
    saved_by = CheckpointStore(ObjectStore(original.storage_uri), original.run.name)
    held = saved_by.held()
    if wish.first not in held:
        raise ConfigError(
            f"run {original.run.name!r} has no checkpoint of step {wish.first} with its weights; kept are the steps "
            f"{', '.join(map(str, held)) or 'of none'}: begin at one of them, and keep more with learner.keep"
        )
    saved = saved_by.load(wish.first, original.run_folder / "cache")
    objectives = check_stages(original)
    with connected(original) as reachable:
        recorded = recorded_steps(read_report_facts(reachable).steps, wish, original.run.name)
        settings = replay_settings(original, wish, folder, sorted({step.stage_index for step in recorded}))
        check_stages(settings)
        wanted = wanted_attempts(recorded, objectives)
        start = ReplayGate(saved.state["intake"]["offsets"]).start()
        attempts = asyncio.run(read_attempts(reachable, start, wanted))
    store = ObjectStore(settings.storage_uri)
    _begin(folder, settings)
    trainer = Trainer(
        settings,
        store,
        load_policy(settings.model, settings.learner),
        checkpoints=ReplayCheckpoints(store, settings.run.name, saved_by),
    )
    trainer.open_at(saved, anew=wish.anew)
    made: list[Step] = []
    compared: list[ComparedStep] = []
    began = time.monotonic()
    mine = CheckpointStore(store, settings.run.name)
    for before, after in retrain(trainer, recorded, objectives, attempts):
        made.append(after)
        compared.append(compare(before, after, _digests(saved_by, mine, before.step)))
        tell(compared[-1])
    found = Replayed(folder, tuple(compared), wish.anew, original.learner.processes)
    summary = build_summary(settings.run.name, made, (), wall_seconds=time.monotonic() - began)
    write_record(found, summary, made, {"of": original.run.name, **asdict(wish)})
    return found


def _digests(one: CheckpointStore, other: CheckpointStore, step: int) -> tuple[str, str] | None:
    if step not in one.steps() or step not in other.steps():
        return None
    first, second = (store.manifest(step).digests[WEIGHTS] for store in (one, other))
    return first, second


def _begin(folder: Path, settings: Settings) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE_NAME).write_text(to_toml(resolve(settings)), encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be written: {error.strerror or error}; name another with --into"
        ) from error
