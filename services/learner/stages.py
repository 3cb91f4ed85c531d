"""Where a run is in its list of stages.

Invariant: steps count up over the whole run and over each stage; a stage ends after exactly its number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.learner.objectives.presets import Objective, objective_of, own_objectives
from shared.data_set import data_digest
from shared.errors import ConfigError
from shared.settings import Settings, StageSettings


@dataclass(frozen=True, slots=True)
class Progress:
    """`step` optimizer steps of the run are done, `stage_step` of them in stage `stage_index`."""

    step: int = 0
    stage_index: int = 0
    stage_step: int = 0

    def advanced(self) -> Progress:
        return replace(self, step=self.step + 1, stage_step=self.stage_step + 1)

    def adopted(self) -> Progress:
        """A step of the run that took other weights, and is none of the stage's own."""
        return replace(self, step=self.step + 1)

    def next_stage(self) -> Progress:
        return replace(self, stage_index=self.stage_index + 1, stage_step=0)


def check_stages(settings: Settings) -> tuple[Objective, ...]:
    """The objective of every stage. Raises `ConfigError` before any work starts."""
    every, lag = settings.learner.checkpoint_every, settings.scheduler.max_lag
    if every > lag + 1:
        raise ConfigError(
            f"learner.checkpoint_every is {every} and scheduler.max_lag {lag}: policies would come too late for the "
            f"groups of the next step; use at most {lag + 1}, or raise max_lag"
        )
    own = own_objectives(settings.objectives)
    return tuple(
        objective_of(stage.objective, stage.kind, own, f"stages.{number}.objective")
        for number, stage in enumerate(settings.stages)
    )


def stage_ended(progress: Progress, stages: tuple[StageSettings, ...]) -> bool:
    return progress.stage_index < len(stages) and progress.stage_step >= stages[progress.stage_index].steps


def evaluated_versions(settings: Settings, step: int) -> frozenset[int]:
    """Versions up to `step` that the scheduler evaluates: the first, those at the ends of stages, every n steps."""
    every = settings.evaluation.every_steps
    found = {0} if settings.evaluation.at_start else set()
    begun = 0
    for index, stage in enumerate(settings.stages):
        begun += bool(index and stage.start_from)  # taking other weights is a step of the run
        found |= set(range(begun + every, begun + stage.steps, every)) if every else set()
        begun += stage.steps
        found.add(begun)
    return frozenset(version for version in found if version <= step)


def identity(settings: Settings, shapes: dict[str, tuple[int, ...]]) -> dict[str, object]:
    """What a checkpoint's offsets and slots belong to: with another of these they mean nothing."""
    return {
        "run.seed": settings.run.seed,
        "bus.namespace": settings.bus.namespace,
        "domains": [[domain.name, domain.difficulty] for domain in settings.domains],
        "stages": [_identity_of(stage) for stage in settings.stages],
        "model": sorted([name, *shape] for name, shape in shapes.items()),
    }


def _identity_of(stage: StageSettings) -> list[object]:
    """Positions in a data set are group numbers: they mean nothing in a file with another digest."""
    more = [data_digest(stage.data)] if stage.data else []
    return [stage.kind, stage.samples, *more, *([f"enough {stage.enough}"] if stage.oversample else ())]


def check_identity(saved: dict[str, object], now: dict[str, object], run: str) -> None:
    """Stages may be appended; everything else must be as it was. Raises `ConfigError` naming what differs."""
    for key, value in now.items():
        before = saved.get(key)
        grown = (
            key == "stages"
            and isinstance(value, list)
            and isinstance(before, list)
            and value[: len(before)] == before
        )
        if before != value and not grown:
            raise ConfigError(
                f"run {run!r} was started with another {_said(key, before, value)}: its checkpoint does not fit; "
                "put it back, or give the new run another name"
            )


def _said(key: str, before: object, now: object) -> str:
    """`stages`, and which one: a changed data set looks like nothing in the configuration."""
    if key == "stages" and isinstance(before, list) and isinstance(now, list):
        for number, (old, new) in enumerate(zip(before, now, strict=False)):
            if old != new:
                data = old[:2] == new[:2]
                return f"{key} ({number}{': the content of its data file' if data else ''})"
    return key
