"""A run's configuration: one TOML file, checked before any work starts."""

from shared.settings.foundation import (
    BusSettings,
    ModelSettings,
    RunSettings,
    StorageSettings,
    TelemetrySettings,
)
from shared.settings.guard import GuardBound, GuardMetric, GuardSettings
from shared.settings.judging import AuditorSettings, AuditRule, VerifierSettings
from shared.settings.learner import KeepSettings, LearnerSettings, LoraSettings, ParallelSettings
from shared.settings.loading import load_settings, parse_settings
from shared.settings.run import Settings
from shared.settings.services import EvaluationSettings, RolloutSettings, SchedulerSettings
from shared.settings.work import DomainSettings, ObjectiveSettings, StageSettings, WorkloadSettings

__all__ = [
    "AuditRule",
    "AuditorSettings",
    "BusSettings",
    "DomainSettings",
    "EvaluationSettings",
    "GuardBound",
    "GuardMetric",
    "GuardSettings",
    "KeepSettings",
    "LearnerSettings",
    "LoraSettings",
    "ModelSettings",
    "ObjectiveSettings",
    "ParallelSettings",
    "RolloutSettings",
    "RunSettings",
    "SchedulerSettings",
    "Settings",
    "StageSettings",
    "StorageSettings",
    "TelemetrySettings",
    "VerifierSettings",
    "WorkloadSettings",
    "load_settings",
    "parse_settings",
]
