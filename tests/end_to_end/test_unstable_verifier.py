"""A run one of whose verifiers pays a fifth of attempts at random: its domain is named, held back, and the run goes on.

The same run shows that every sampled token is booked once.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts import Control, Message, Step, Trajectory
from temper.audit.place import connected, run_settings
from temper.models.tiny import make_tiny_model
from tests.end_to_end.local_run import LocalRun, temper
from tests.services.audited import EVEN, SHAKY

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RUN = """
[run]
name = "small"
folder = "{folder}"
[model]
path = "{model}"
[bus]
partitions = 2
session_timeout_ms = 6000
drain_s = 5.0
[[domains]]
name = "{even}"
max_tokens = 4
[[domains]]
name = "{shaky}"
max_tokens = 4
[[stages]]
kind = "rl"
steps = 5
groups_per_step = 4
group_size = 8
learning_rate = 1e-4
[scheduler]
group_deadline_s = 20.0
stall_s = 120.0
[evaluation]
instances_per_domain = 4
at_start = false
[auditor]
repeat_share = 0.2
[telemetry]
heartbeat_s = 0.5
"""


def told(run: LocalRun) -> list[Message]:
    """Attempts, steps and words of control, topic by topic."""

    async def read(settings: Any) -> list[Message]:
        names = TopicNames(settings.bus.namespace)
        attempts = [
            names.trajectories(workload.name, priority)
            for workload in settings.workloads
            for priority in workload.priorities
        ]
        reader = LogReader(settings, "scheduler", [names.control, names.steps, *attempts])
        seen = [delivery.message async for delivery in reader.to_end()]
        await reader.close()
        return seen

    with connected(run_settings(run.folder)) as settings:
        return asyncio.run(read(settings))


def of(seen: list[Message], kind: type[Any]) -> list[Any]:
    return [message for message in seen if isinstance(message, kind)]


def test_an_unstable_verifier_is_named_and_held_back(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny")
    with LocalRun(tmp_path, model) as run:
        run.config.write_text(RUN.format(folder=tmp_path / "runs", model=model, shaky=SHAKY, even=EVEN))
        assert run.start(PYTHONPATH=str(ROOT)).wait() == 0
        seen = told(run)
        (hold,) = [word for word in of(seen, Control) if word.kind == "hold"]
        assert (hold.domain, hold.body["cause"]) == ("shaky", "flaky")
        sampled = {made.trajectory_id: made for made in of(seen, Trajectory)}
        for one in hold.body["evidence"]["attempts"]:
            assert sampled[one["trajectory_id"]].domain.name == "shaky" and len(one["verdicts"]) > 1
        _is_shown(run, hold.reason)
        _the_others_are_learnt_from(of(seen, Step))
        _every_token_is_booked_once(run, list(sampled.values()), of(seen, Step))


def _is_shown(run: LocalRun, reason: str) -> None:
    line = f"domain shaky is held back: {reason}"
    assert any(line in printed for printed in run.lines)
    assert reason in json.loads((run.folder / "summary.json").read_text())["held"]["shaky"]
    assert line in " ".join(temper("report", str(run.folder)).stdout.split())
    assert (
        temper("domains", "held", str(run.folder), PYTHONPATH=str(ROOT)).stdout.strip() == f"shaky: {reason}"
    )


def _the_others_are_learnt_from(steps: list[Step]) -> None:
    """Once its groups in flight were given up, steps learn from the sound domain alone."""
    learnt = [{group.domain for group in step.groups if "expired" not in group.fates} for step in steps]
    assert len(steps) == 5 and learnt[-1] == {"even_length"}
    given_up = {group.domain for step in steps for group in step.groups if "expired" in group.fates}
    assert given_up <= {"shaky", ""}


def _every_token_is_booked_once(run: LocalRun, sampled: list[Trajectory], steps: list[Step]) -> None:
    """sampled = trained + every cause + what no step has resolved, to the token."""
    training = [made for made in sampled if made.purpose == "train"]
    booked = {group.group_id for step in steps for group in step.groups}
    unresolved = sum(made.sampled_tokens() for made in training if made.slot.group_id not in booked)
    by_fate = sum((Counter(step.tokens) for step in steps), Counter[str]())
    assert by_fate["trained"] > 0 and by_fate["zero_signal"] > 0
    assert sum(made.sampled_tokens() for made in training) == by_fate.total() + unresolved
    result = temper("audit", str(run.folder), "--json", PYTHONPATH=str(ROOT))
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads(result.stdout)["tokens"] == {**by_fate, "unresolved": unresolved}
    assert all(step.effective_throughput == pytest.approx(
        step.trained_trajectories / step.seconds["total"]) for step in steps)  # fmt: skip
