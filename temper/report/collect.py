"""From a run's topics to its summary and its curve.

Invariant: both files are made from the same reading of the topics; a missing plotting library costs the picture
only, and is said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import structlog
from pydantic import ValidationError

from shared.bus.topics import TopicNames
from shared.contracts import Control, Evaluation, Notice, Step
from shared.errors import ConfigError, ContractError, DependencyError, StorageError
from shared.plain_errors import explain, said
from shared.settings import Settings
from shared.storage import ObjectStore
from temper.audit.log import TopicLog
from temper.audit.place import connected, run_settings
from temper.report.curve import plot_curves
from temper.report.rates import SUMMARY, no_summary
from temper.report.summary import Summary, build_summary, write_summary

CURVE = "reward.png"


@dataclass
class ReportFacts:
    """What a report is made of, in log order."""

    steps: list[Step] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    """Domains that are held back at the end, and why."""
    ended: bool = False
    """The scheduler has said that every stage is done."""

    def take_word(self, control: Control) -> None:
        """The newest word on a domain counts."""
        if control.kind == "hold":
            self.held[control.domain] = control.reason
        elif control.kind == "lift":
            self.held.pop(control.domain, None)

    @property
    def wall_seconds(self) -> float:
        """From the beginning of the first step or evaluation to the end of the last; 0 of none."""
        spans = [(s.created_ms / 1000, s.seconds.get("total", 0.0)) for s in self.steps]
        spans += [(e.created_ms / 1000, e.seconds) for e in self.evaluations]
        if not spans:
            return 0.0
        return max(end for end, _ in spans) - min(end - seconds for end, seconds in spans)


def read_report_facts(settings: Settings) -> ReportFacts:
    """Raises `BusError` where the topics cannot be read."""
    names, facts, run = TopicNames(settings.bus.namespace), ReportFacts(), settings.run.name
    with TopicLog(settings, (names.steps, names.control), ObjectStore(settings.storage_uri)) as log:
        for record in log.records():
            try:
                message = log.message(record)
            except ContractError as error:
                structlog.get_logger().warning(
                    "record left out of the report", position=str(record.position), error=str(error)
                )
                continue
            match message:
                case Step() if message.run_id == run:
                    facts.steps.append(message)
                case Notice() if message.run_id == run:
                    facts.notices.append(message)
                case Evaluation() if message.run_id == run:
                    facts.evaluations.append(message)
                case Control() if message.run_id == run:
                    facts.ended = facts.ended or message.kind == "end"
                    facts.take_word(message)
    return facts


def summarize_run(settings: Settings, wall_s: float, accelerators: int = 1) -> Summary:
    """Write summary.json and reward.png into the run's folder. Blocking.

    `settings.bus` must reach the run's broker; `wall_s` are the seconds of this start of the run.
    """
    return write_report(settings, read_report_facts(settings), wall_s, accelerators)


def summary_of(settings: Settings, facts: ReportFacts, wall_s: float, accelerators: int = 1) -> Summary:
    return build_summary(
        settings.run.name,
        facts.steps,
        facts.evaluations,
        facts.notices,
        held=facts.held,
        wall_seconds=wall_s,
        accelerators=accelerators,
    )


def write_report(settings: Settings, facts: ReportFacts, wall_s: float, accelerators: int = 1) -> Summary:
    """Both files. Raises `StorageError` where the run's folder cannot be written."""
    summary = summary_of(settings, facts, wall_s, accelerators)
    folder = settings.run_folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_summary(summary, folder / SUMMARY)
        _draw(settings, facts, folder / CURVE)
    except OSError as error:
        raise StorageError(
            f"{folder / SUMMARY} cannot be written: {error.strerror or error}; free space or set run.folder"
        ) from error
    return summary


def report_of_folder(folder: Path) -> tuple[Summary, bool]:
    """The summary of a run's folder, and whether the run has ended.

    Read from summary.json, else made from the run's topics; of a run that has ended both files are then written.
    Raises `ConfigError` where there is neither, or nothing has happened yet, `BusError`, and as `read_summary`.
    """
    path = folder / SUMMARY
    if path.is_file():
        return read_summary(path), True
    with connected(run_settings(folder)) as settings:
        facts = read_report_facts(settings)
        if not facts.steps and not facts.evaluations:
            raise ConfigError(
                f"{folder}: run {settings.run.name!r} has made no step and no evaluation yet; what it waits for is in "
                f"its services' logs ({folder / 'logs'} of a `temper up`)"
            )
        if not facts.ended:
            return summary_of(settings, facts, facts.wall_seconds), False
        try:
            return write_report(settings, facts, facts.wall_seconds), True
        except StorageError as error:  # to read a run, its folder need not be writable
            structlog.get_logger().warning("the report is not kept", cause=str(error))
            return summary_of(settings, facts, facts.wall_seconds), True


def read_summary(path: Path) -> Summary:
    """Raises `DataError` for a file that is no summary, `StorageError` for one that cannot be read."""
    try:
        return Summary.model_validate_json(path.read_bytes())
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {said(error)}") from error
    except ValidationError as error:
        raise no_summary(path, explain(Summary, error, "the file")) from error


def _draw(settings: Settings, facts: ReportFacts, png: Path) -> None:
    try:
        plot_curves(settings.run.name, facts.steps, facts.evaluations, png)
    except DependencyError as error:
        structlog.get_logger().warning("no reward curve", cause=str(error))
