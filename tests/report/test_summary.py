"""The summary: every slot and token counted once, every rate beside its counts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contracts import Notice, Step
from temper.report.summary import build_summary, rate, wilson, write_summary
from tests.report.made_messages import RUN, evaluation, group, rl_step, sft_step

STEPS = [
    sft_step(1),
    sft_step(2),
    rl_step(3, 1, group(1, "trained", "trained"), group(2, "stale", "faulted"), mean=0.25, passed=2),
    rl_step(4, 2, group(3, "trained", "zero_signal"), mean=0.75, passed=6),
]
EVALUATIONS = [evaluation("end", 4, arithmetic=12), evaluation("start", 0, arithmetic=1, sequences=0)]


def test_stages_slots_tokens_and_throughput():
    summary = build_summary(RUN, STEPS, EVALUATIONS, wall_seconds=9.0)
    sft, rl = summary.stages
    assert (sft.kind, sft.steps, sft.slots.trained, sft.wall_seconds) == ("sft", 2, 2, 2.0)
    assert (rl.kind, rl.steps, rl.prompt_tokens) == ("rl", 2, 40)
    assert rl.slots.model_dump() == {
        "trained": 3, "stale": 1, "dropped": 1, "faulted": 1,
        "by_fate": {"faulted": 1, "stale": 1, "trained": 3, "zero_signal": 1},
    }  # fmt: skip
    assert rl.tokens == {"stale": 6, "trained": 30}
    arithmetic = rl.domains["arithmetic"]
    assert (arithmetic.passed, arithmetic.count, arithmetic.rate, arithmetic.mean_reward) == (8, 16, 0.5, 0.5)
    assert rl.effective_throughput == 3 / 4.0
    assert summary.effective_throughput == 3 / 4.0, "demonstrations are not verified: sft does not count"
    assert (summary.steps, summary.slots.trained, summary.trained_trajectories) == (4, 5, 5)
    assert summary.tokens == {"stale": 6, "trained": 40}
    assert build_summary(RUN, STEPS, [], wall_seconds=9, accelerators=3).effective_throughput == 0.25


def test_evaluations_in_order_with_counts_and_bounds():
    start, end = build_summary(RUN, STEPS, EVALUATIONS, wall_seconds=9.0).evaluations
    assert [start.name, end.name] == ["start", "end"]
    assert (start.overall.passed, start.overall.count, start.overall.faulted) == (1, 32, 2)
    found = end.domains["arithmetic"]
    assert (found.passed, found.count, found.rate, found.mean_reward) == (12, 16, 0.75, 0.75)
    assert found.low is not None and found.high is not None and found.low < 0.75 < found.high


def test_a_lineage_that_a_restart_gave_up_is_not_counted():
    again = rl_step(4, 2, group(3, "trained", "trained"), mean=1.0, passed=8).model_copy(
        update={"lineage": "b"}
    )
    summary = build_summary(RUN, [*STEPS, STEPS[-1], again], EVALUATIONS, wall_seconds=1.0)
    assert (summary.steps, summary.slots.trained) == (4, 6)


def test_groups_noticed_after_the_last_step_are_counted():
    late = Notice(run_id=RUN, groups=(group(9, "expired", "expired"), group(3, "stale", "stale")))
    summary = build_summary(RUN, STEPS, [], [late, late], wall_seconds=1.0)
    assert summary.stages[1].slots.by_fate["expired"] == 2
    assert summary.slots.stale == 1, "group 3 is booked by a step: the notice of it is only advice"


def test_nothing_at_all_is_a_summary_too():
    summary = build_summary(RUN, [], [], wall_seconds=0.0)
    assert (summary.stages, summary.evaluations, summary.effective_throughput) == ((), (), 0.0)
    assert rate(0, 0).rate is None


def test_the_file_is_replaced_as_a_whole(tmp_path: Path):
    path = tmp_path / "summary.json"
    path.write_text("old")
    summary = build_summary(RUN, STEPS, EVALUATIONS, wall_seconds=9.0)
    write_summary(summary, path)
    assert json.loads(path.read_text()) == summary.model_dump(mode="json")
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize(
    ("passed", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (29, 29, 0.8830, 1.0)],
)
def test_bounds_are_wilsons(passed: int, count: int, low: float, high: float):
    """Values of R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3."""
    found = wilson(passed, count)
    assert found is not None
    assert math.isclose(found[0], low, abs_tol=6e-5) and math.isclose(found[1], high, abs_tol=6e-5)


@given(
    st.lists(st.lists(st.sampled_from(["trained", "stale", "faulted", "zero_signal", "invalid"]), max_size=4))
)
def test_every_slot_is_counted_once(rows: list[list[str]]):
    steps: list[Step] = [rl_step(n + 1, n + 1, group(n, *row)) for n, row in enumerate(rows)]  # type: ignore[arg-type]
    slots = build_summary(RUN, steps, [], wall_seconds=1).slots
    assert slots.trained + slots.stale + slots.dropped + slots.faulted == sum(map(len, rows))
    assert sum(slots.by_fate.values()) == sum(map(len, rows))
