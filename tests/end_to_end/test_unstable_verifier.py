"""A run one of whose verifiers pays a fifth of attempts at random: its domain is named, held back, and the run goes on.

The same run shows that every sampled token is booked once.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from shared.contracts import Control, Step, Trajectory
from temper.models.tiny import make_tiny_model
from tests.end_to_end.local_run import LocalRun, audited, of, temper, told
from tests.services.audited import EVEN, SHAKY

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RUN = f"""
[[domains]]
name = "{EVEN}"
max_tokens = 4
[[domains]]
name = "{SHAKY}"
max_tokens = 4
[[stages]]
kind = "rl"
steps = 5
groups_per_step = 4
group_size = 8
learning_rate = 1e-4
[evaluation]
instances_per_domain = 4
at_start = false
[auditor]
repeat_share = 0.2
"""


def test_an_unstable_verifier_is_named_and_held_back(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny")
    with LocalRun(tmp_path, model, RUN) as run:
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
    found = json.loads(audited(run, "--json", PYTHONPATH=str(ROOT)))
    assert found["tokens"] == {**by_fate, "unresolved": unresolved}
    assert all(step.effective_throughput == pytest.approx(
        step.trained_trajectories / step.seconds["total"]) for step in steps)  # fmt: skip
