"""From a run's topics to its summary and its curve.

Invariant: both files are made from the same reading of the topics; a missing plotting library costs the picture
only, and is said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import structlog

from shared.bus.topics import TopicNames
from shared.contracts import Evaluation, Notice, Step
from shared.errors import ContractError, DependencyError
from shared.settings import Settings
from shared.storage import ObjectStore
from temper.audit.log import TopicLog
from temper.report.curve import plot_curves
from temper.report.summary import Summary, build_summary, write_summary

SUMMARY, CURVE = "summary.json", "reward.png"


@dataclass
class ReportFacts:
    """What a report is made of, in log order."""

    steps: list[Step] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)


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
    return facts


def summarize_run(settings: Settings, wall_s: float, accelerators: int = 1) -> Summary:
    """Write summary.json and reward.png into the run's folder. Blocking.

    `settings.bus` must reach the run's broker; `wall_s` are the seconds of this start of the run.
    """
    facts = read_report_facts(settings)
    summary = build_summary(
        settings.run.name,
        facts.steps,
        facts.evaluations,
        facts.notices,
        wall_seconds=wall_s,
        accelerators=accelerators,
    )
    folder = settings.run_folder
    folder.mkdir(parents=True, exist_ok=True)
    write_summary(summary, folder / SUMMARY)
    _draw(settings, facts, folder / CURVE)
    return summary


def _draw(settings: Settings, facts: ReportFacts, png: Path) -> None:
    try:
        plot_curves(settings.run.name, facts.steps, facts.evaluations, png)
    except DependencyError as error:
        structlog.get_logger().warning("no reward curve", cause=str(error))
