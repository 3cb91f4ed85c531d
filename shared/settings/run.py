"""A run's configuration as a whole.

Invariant: names that one section takes from another are declared there, and what cannot hold together is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from shared.domains.agent import AgentProgram
from shared.episode_settings import EpisodeSettings
from shared.errors import ConfigError
from shared.plain_errors import explain, nearest
from shared.sandbox.settings import SandboxSettings
from shared.settings.foundation import (
    BusSettings,
    ModelSettings,
    RunSettings,
    StorageSettings,
    TelemetrySettings,
)
from shared.settings.guard import GuardSettings
from shared.settings.judging import AuditorSettings, VerifierSettings
from shared.settings.learner import LearnerSettings
from shared.settings.section import Section
from shared.settings.services import EvaluationSettings, RolloutSettings, SchedulerSettings
from shared.settings.work import DomainSettings, StageSettings, WorkloadSettings
from shared.weights.settings import PublishingSettings


class Settings(Section):
    run: RunSettings
    bus: BusSettings = BusSettings()
    storage: StorageSettings = StorageSettings()
    publishing: PublishingSettings = PublishingSettings()
    model: ModelSettings
    workloads: tuple[WorkloadSettings, ...] = (WorkloadSettings(name="single_turn"),)
    domains: tuple[DomainSettings, ...] = Field(min_length=1)
    objectives: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Objectives of one's own: `[objectives.mine]` with the `preset` it begins from and what it changes."""
    stages: tuple[StageSettings, ...] = Field(min_length=1)
    scheduler: SchedulerSettings = SchedulerSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    rollout: RolloutSettings = RolloutSettings()
    verifier: VerifierSettings = VerifierSettings()
    auditor: AuditorSettings = AuditorSettings()
    sandbox: SandboxSettings = SandboxSettings()
    learner: LearnerSettings = LearnerSettings()
    guard: GuardSettings = GuardSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @model_validator(mode="after")
    def _names_exist(self) -> Settings:
        workloads = {workload.name for workload in self.workloads}
        domains = {domain.name for domain in self.domains}
        for domain in self.domains:
            _known("domain workload", domain.workload, workloads)
        for stage in self.stages:
            for name in stage.domains:
                _known("stage domain", name, domains)
        if self.learner.keep.best_of:
            _known("learner.keep.best_of domain", self.learner.keep.best_of, domains)
        for name in self.auditor.never_hold:
            _known("auditor.never_hold domain", name, domains)
        for section in (self.rollout, self.verifier):
            for name in section.workloads:
                _known("workload", name, workloads)
        for domain in self.domains:
            self._check_episode(domain)
        if self.learner.checkpoint_every - 1 > self.scheduler.max_lag:
            raise ValueError(
                f"learner.checkpoint_every is {self.learner.checkpoint_every} and scheduler.max_lag is "
                f"{self.scheduler.max_lag}: tokens would be older than allowed before a newer policy is published; "
                "set max_lag to at least checkpoint_every - 1"
            )
        return self

    def _check_episode(self, domain: DomainSettings) -> None:
        try:
            episode = self.episode_of(domain.name)
        except ValidationError as error:
            raise ValueError(
                explain(EpisodeSettings, error, f"the episode of domain {domain.name!r}")
            ) from error
        deadline_s = self.scheduler.group_deadline_s
        if episode.wall_seconds > deadline_s:
            raise ValueError(
                f"an attempt at domain {domain.name!r} may take {episode.wall_seconds:g} s and its group has "
                f"{deadline_s:g} s: lower its wall_seconds or raise scheduler.group_deadline_s"
            )

    def episode_of(self, domain: str) -> EpisodeSettings:
        """Of a declared domain: its workload's, with what the domain changes. Raises `KeyError` for another name."""
        declared = {item.name: item for item in self.domains}[domain]
        workload = {item.name: item for item in self.workloads}[declared.workload]
        return workload.episode.changed_by(declared.episode)

    def agent_of(self, domain: str) -> AgentProgram | None:
        """The operator's program for a declared domain, None without one. Reads its folder; raises `ConfigError`."""
        try:
            return self.episode_of(domain).agent.program()
        except ConfigError as error:
            raise ConfigError(f"domain {domain!r}: episode.{error}") from error

    @property
    def run_folder(self) -> Path:
        return Path(self.run.folder).absolute() / self.run.name

    @property
    def storage_uri(self) -> str:
        return self.storage.uri or f"file://{self.run_folder / 'objects'}"


def _known(what: str, name: str, known: set[str]) -> None:
    if name not in known:
        raise ValueError(
            f"{what} {name!r} is not declared; declared: {', '.join(sorted(known))}{nearest(name, known)}"
        )
