"""Whole runs whose learning is at stake: one that collapses on purpose and is taken back, and one that learns from
verified pairs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shared.contracts import Policy, Step
from temper.models.tiny import make_tiny_model
from tests.end_to_end.local_run import LocalRun, audited, of, temper, told

pytestmark = pytest.mark.slow

RUN = """
[[domains]]
name = "sequences"
max_tokens = 6
difficulty = {{ length = 2, operation = "sort", max_value = {max_value} }}
[[stages]]
kind = "sft"
steps = {sft_steps}
groups_per_step = 64
learning_rate = 3e-3
{stage}
[evaluation]
instances_per_domain = {instances}
at_start = false
temperature = {temperature}
"""

COLLAPSE = """
[[stages]]
kind = "rl"
steps = 12
groups_per_step = 8
group_size = 8
learning_rate = 2.5e-2  # 50 times what this model learns with
objective = { preset = "grpo", overrides = { kl_coefficient = 0.01 } }
[guard]
rate_factor = 0.02
[[guard.bounds]]
metric = "kl"
limit = 0.5
action = "roll_back"
[[guard.bounds]]
metric = "not_finite"
action = "roll_back"
"""

PREFERENCE = """
[[stages]]
kind = "preference"
steps = 20
groups_per_step = 16
group_size = 8
learning_rate = 1e-3
"""


def test_a_run_that_collapses_is_rolled_back_and_goes_on(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny")
    about = RUN.format(sft_steps=32, stage=COLLAPSE, max_value=9, instances=8, temperature=0.0)
    with LocalRun(tmp_path, model, about) as run:
        assert run.start().wait() == 0
        seen = told(run)
        steps = of(seen, Step)
        digests = {policy.version: policy.weights.sha256 for policy in of(seen, Policy)}
        by_number = {step.step: step for step in steps}
        back = [step for step in steps if step.action == "roll_back"]
        assert back, "nothing was noticed"
        first = back[0]
        assert first.kl > 0.5 and first.trained_trajectories == 0
        said = re.search(r"rolled back to the checkpoint of step (\d+): kl", first.notes[0])
        assert said, first.notes
        named = {name for group in first.groups for name in group.trajectory_ids}
        assert any(name in first.notes[0] for name in named)
        fates = {fate for group in first.groups for fate in group.fates}
        assert fates <= {"skipped", "zero_signal", "stale"} and fates - {"stale"}, fates
        # The last good step is that of the demonstrations, or a later one whose groups had nothing to teach: which one
        # it is depends on the first answers. The roll-back has its weights and a number of its own.
        assert 32 <= int(said[1]) < first.step
        assert digests[first.step] == digests[int(said[1])] != digests[first.step - 1]
        rate = 0.025 * 0.02 ** len(back)
        after = [step for step in steps if step.step > back[-1].step]
        assert after and all(0 <= step.kl < 0.5 for step in after)
        assert by_number[max(by_number)].learning_rate == pytest.approx(rate)
        assert any(fate in audited(run) for fate in fates)
        assert first.notes[0] in " ".join(temper("report", str(run.folder)).stdout.split())
        assert any("rolled back" in line for line in run.lines)


def test_dpo_on_verified_pairs_raises_the_pass_rate(tmp_path: Path) -> None:
    """Told by the attempts in training: of 210 pairs 48 are held out, too few to tell 12 % from 25 %."""
    model = make_tiny_model(tmp_path / "tiny")
    about = RUN.format(sft_steps=48, stage=PREFERENCE, max_value=20, instances=48, temperature=1.0)
    with LocalRun(tmp_path, model, about) as run:
        assert run.start().wait() == 0
        learnt = [step for step in of(told(run), Step) if step.stage == "preference"]
        # A rate of 512 attempts at the beginning and at the end.
        first, last = (
            sum(step.rewards["sequences"].passed for step in part) for part in (learnt[:4], learnt[-4:])
        )
        assert last > first + 25, f"{first} of 512, then {last}"
        before, after = json.loads((run.folder / "summary.json").read_text())["evaluations"]
        assert after["name"] == "1-preference-end"
        assert before["overall"]["count"] == after["overall"]["count"] == 48
        assert all(fate in audited(run) for fate in ("unpaired", "zero_signal"))
