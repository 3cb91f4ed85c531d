"""The pure audit: clean runs pass, whatever their history; every kind of broken promise is found and named."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.contracts import GroupFate
from temper.audit.check import check
from temper.audit.facts import AttemptFact
from temper.audit.lineage import surviving
from tests.audit.broken_runs import INJECTIONS
from tests.audit.made_runs import RUN, MadeRun, made_run

SEEDS = st.integers(0, 10**6)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 5), restart=st.none() | st.integers(0, 4), traced=st.booleans())
def test_a_clean_run_has_no_findings(seed: int, steps: int, restart: int | None, traced: bool):
    facts = made_run(seed, steps, restart=restart, traced=traced)
    audit = check(facts)
    assert audit.findings == ()
    assert audit.steps == steps
    assert (
        sum(audit.fates.values())
        == audit.slots
        == len({(t.group_id, i) for t in facts.tasks for i in t.samples})
    )
    size = len(facts.tasks[0].samples)
    assert (
        audit.fates["dead-lettered"]
        == audit.fates["queued"]
        == audit.fates["awaits training"] - _lost(facts)
        == size
    )
    assert (audit.traces is None) is not traced


def _lost(facts) -> int:
    """Slots of steps that a restart gave up: made again under other ids here, they wait for ever."""
    kept = {group.group_id for step in surviving(facts.steps) for group in step.groups}
    gone = {
        group.group_id: group for step in facts.steps for group in step.groups if group.group_id not in kept
    }
    return sum(len(group.samples) for group in gone.values())


@pytest.mark.parametrize("what", INJECTIONS)
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, steps=st.integers(2, 4), restart=st.none() | st.integers(0, 3))
def test_a_broken_promise_is_found(what: str, seed: int, steps: int, restart: int | None):
    rule, inject = INJECTIONS[what]
    broken = inject(made_run(seed, steps, restart=restart), random.Random(seed))
    assume(broken is not None)
    assert rule in {finding.rule for finding in check(broken).findings}


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 4), behind=st.integers(1, 4))
def test_a_token_older_than_max_lag_is_found_and_one_at_the_limit_is_not(seed: int, steps: int, behind: int):
    facts = made_run(seed, steps)
    number = steps + facts.max_lag + behind
    run = MadeRun(random.Random(seed), max_lag=facts.max_lag)
    for _ in range(number):
        run.step()
    trained = {
        t
        for g in run.steps[-1].groups
        for t, f in zip(g.trajectory_ids, g.fates, strict=True)
        if f == "trained"
    }
    assume(trained)

    def aged(version: int):
        made = tuple(
            replace(a, oldest_version=version) if a.trajectory_id in trained else a for a in run.attempts
        )
        return check(run.facts(attempts=made)).findings

    limit = number - 1 - facts.max_lag
    assert aged(limit) == ()
    if limit - behind >= 0:
        found = aged(limit - behind)
        assert {finding.rule for finding in found} == {"too old"}
        assert f"{facts.max_lag + behind} behind, max_lag is {facts.max_lag}" in found[0].text


def test_demonstrations_need_no_reward():
    run = MadeRun(random.Random(1))
    run.step()
    facts = run.facts()
    sft = tuple(replace(a, demonstration=True, oldest_version=-1) for a in facts.attempts)
    assert check(replace(facts, attempts=sft, rewards=())).findings == ()


def test_a_later_lineage_replaces_the_steps_after_its_checkpoint():
    run = MadeRun(random.Random(3))
    for _ in range(4):
        run.step()
    first = list(run.steps)
    run.restart_from(2)
    assert surviving(run.steps) == (*first[:2], *run.steps[4:])
    assert surviving([*first, *first[-1:]]) == tuple(first)
    assert surviving([*first, *first[1:]]) == tuple(first), "told again from a checkpoint on"


def test_a_slot_in_a_lost_lineage_may_be_trained_in_the_surviving_one():
    run = MadeRun(random.Random(5))
    for _ in range(2):
        run.step()
    again = run.steps[1].model_copy(update={"loss": 0.25, "lineage": "b"})
    audit = check(run.facts(steps=(*run.steps, again)))
    assert audit.findings == ()
    assert (audit.steps, audit.repeated_steps) == (2, 1)


def test_an_attempt_without_a_fate_stands_where_it_is():
    run = MadeRun(random.Random(5), group_size=1)
    group = run.schedule()
    facts = run.facts(attempts=(AttemptFact("t", (group, 0)),))
    assert check(facts).fates == {"awaits verification": 1}
    assert check(facts).pending == 1


def test_an_abandoned_group_owes_nothing():
    run = MadeRun(random.Random(5), group_size=1)
    group = run.schedule()
    facts = run.facts(tasks=(replace(run.tasks[0], finished=True),))
    assert {finding.rule for finding in check(facts).findings} == {"lost"}
    assert check(replace(facts, abandoned=frozenset({group}))).findings == ()


def test_a_group_without_trajectory_ids_trains_nothing_in_silence():
    run = MadeRun(random.Random(2), group_size=1, groups_per_step=1)
    run.step()
    bare = GroupFate(group_id=run.tasks[0].group_id, samples=(0,), fates=("trained",))
    step = run.steps[0].model_copy(update={"groups": (bare,), "trained_trajectories": 1, "tokens": {}})
    rules = {finding.rule for finding in check(run.facts(steps=(step,))).findings}
    assert rules == {"trained without a trajectory", "trace not connected"}
    assert step.run_id == RUN
