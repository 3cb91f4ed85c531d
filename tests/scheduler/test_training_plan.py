"""Admission: bounds, restarts, deadlines, mix — as properties of the pure plan."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.mix import DomainMix
from services.scheduler.seeds import held_out_seed, train_seed
from services.scheduler.training import GroupPlan, TrainingPlan, parse_group_id
from shared.contracts import GroupFate, Step
from shared.domains.base import HELD_OUT_SEED
from shared.settings import DomainSettings, StageSettings

DOMAINS = (DomainSettings(name="a", weight=3), DomainSettings(name="b", weight=1))


def plan_of(max_lag: int = 1, steps: int = 3, groups: int = 4, **kwargs: object) -> TrainingPlan:
    stages = (
        StageSettings(kind="sft", steps=steps, groups_per_step=groups),
        StageSettings(kind="rl", steps=steps, groups_per_step=groups, group_size=2),
    )
    return TrainingPlan(
        stages, DOMAINS, run_seed=1, max_lag=max_lag,
        **({"deadline_s": 100.0, "max_attempts": 3} | kwargs),  # type: ignore[arg-type]
    )  # fmt: skip


def fate(group: GroupPlan, fate: str = "trained") -> GroupFate:
    return GroupFate(group_id=group.group_id, samples=(0,), fates=(fate,))  # type: ignore[arg-type]


def step_of(plan: TrainingPlan, groups: list[GroupPlan]) -> Step:
    kind = "sft" if plan.stage_index == 0 else "rl"
    return Step(
        run_id="r", step=plan.step + 1, stage=kind, stage_index=plan.stage_index, stage_step=plan.stage_step + 1,
        policy_version=plan.step + 1, groups=tuple(fate(g) for g in groups),
    )  # fmt: skip


@given(st.integers(0, 4), st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_in_flight_is_bounded_and_the_run_always_ends(
    max_lag: int, steps: int, groups: int, seed: int
) -> None:
    rng = random.Random(seed)
    plan = plan_of(max_lag, steps, groups)
    held: list[GroupPlan] = []
    seen: set[str] = set()
    while not plan.finished:
        fresh = plan.admit(0.0)
        assert not seen & {g.group_id for g in fresh}, "a group was scheduled twice"
        seen |= {g.group_id for g in fresh}
        held += fresh
        assert plan.in_flight <= (max_lag + 1) * groups
        assert len(held) >= groups, "less than one batch may be in flight: the learner would wait for ever"
        rng.shuffle(held)
        if rng.random() < 0.3:
            plan.observe_resolved([fate(held.pop(), "zero_signal")])
            continue
        batch, held = held[:groups], held[groups:]
        if plan.observe_step(step_of(plan, batch)) == "stage_ended":
            held = []
    assert plan.step == 2 * steps


@given(st.integers(0, 3), st.integers(0, 10), st.integers(0, 2**32))
@settings(deadline=None)
def test_a_restarted_plan_goes_on_where_it_was(max_lag: int, moves: int, seed: int) -> None:
    rng = random.Random(seed)
    plan = plan_of(max_lag)
    sent: list[GroupPlan] = []
    steps: list[Step] = []
    held: list[GroupPlan] = []
    for _ in range(moves):
        fresh = plan.admit(1.0)
        sent += fresh
        held += fresh
        if plan.finished:
            break
        batch, held = held[:4], held[4:]
        steps.append(step_of(plan, batch))
        if plan.observe_step(steps[-1]) == "stage_ended":
            held = []
    again = plan_of(max_lag)
    for step in steps:
        again.observe_step(step)
    for group in rng.sample(sent, len(sent)):
        again.observe_scheduled(group.group_id, group.attempt, 1.0)
    assert {g.group_id for g in again.admit(2.0)} == {g.group_id for g in plan.admit(2.0)}
    assert (again.in_flight, again.step, again.stage_index) == (plan.in_flight, plan.step, plan.stage_index)


def test_a_repeated_step_changes_nothing() -> None:
    plan = plan_of()
    batch = plan.admit(0.0)[:4]
    step = step_of(plan, batch)
    assert plan.observe_step(step) == "advanced"
    before = (plan.step, plan.stage_step, plan.in_flight)
    assert plan.observe_step(step) == "repeated"
    assert (plan.step, plan.stage_step, plan.in_flight) == before


def test_overdue_groups_are_tried_again_then_given_up_once() -> None:
    plan = plan_of(deadline_s=10.0, max_attempts=2)
    first = plan.admit(0.0)
    assert plan.overdue(9.9) == ([], [])
    again, given_up = plan.overdue(10.0)
    assert {g.group_id for g in again} == {g.group_id for g in first}
    assert {g.attempt for g in again} == {2} and not given_up
    assert plan.overdue(15.0) == ([], [])
    again, given_up = plan.overdue(20.0)
    assert not again and set(given_up) == {g.group_id for g in first}
    assert plan.overdue(40.0) == ([], [])
    assert plan.in_flight == len(first), "a given-up group is in flight until the learner books it"


def test_a_verified_group_is_not_overdue() -> None:
    plan = plan_of(deadline_s=10.0, steps=1)
    plan.observe_step(step_of(plan, plan.admit(0.0)[:4]))
    groups = plan.admit(0.0)
    for sample in range(2):
        plan.observe_reward(groups[0].group_id, sample)
    plan.observe_reward(groups[1].group_id, 0)
    again, _ = plan.overdue(10.0)
    assert {g.group_id for g in again} == {g.group_id for g in groups[1:]}


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(1, 20), min_size=1), st.integers(1, 300))
@settings(deadline=None)
def test_the_mix_is_within_one_of_its_share(weights: dict[str, int], picks: int) -> None:
    mix = DomainMix(weights)
    counts = Counter(mix.pick()[0] for _ in range(picks))
    total = sum(weights.values())
    for name, weight in weights.items():
        assert abs(counts[name] - picks * weight / total) < len(weights)


def test_seeds_are_stable_and_disjoint() -> None:
    assert train_seed(0, 1, "arithmetic", 5) == 148043332061
    assert all(train_seed(0, 0, "a", k) < HELD_OUT_SEED <= held_out_seed(k) for k in range(1000))


@pytest.mark.parametrize("text", ["eval-start-arithmetic-00001", "x", "", "1-rl", "a-rl-3"])
def test_other_ids_are_not_training_groups(text: str) -> None:
    assert parse_group_id(text) is None


def chain(second: StageSettings) -> TrainingPlan:
    stages = (StageSettings(kind="rl", steps=1, groups_per_step=2, group_size=2), second)
    return TrainingPlan(stages, DOMAINS, run_seed=1, max_lag=1, deadline_s=9.0, max_attempts=3)


def test_groups_of_a_data_set_are_positions_whatever_is_held_back() -> None:
    plan = chain(StageSettings(kind="preference", steps=2, groups_per_step=2, data="pairs.jsonl"))
    plan.observe_step(step_of(plan, plan.admit(0.0)))
    plan.held = {"a", "b"}
    assert not plan.starved
    groups = plan.admit(0.0)
    assert [(group.group_id, group.domain, group.seed) for group in groups] == [
        (f"1-preference-{number:07d}", "", number) for number in range(4)
    ]
    assert plan.give_up_held() == []
    plan.observe_scheduled("1-preference-0000005", 1, 0.0, "a", 77)
    assert plan.overdue(100.0)[0][-1].seed == 5  # the position, whatever a domain of that name would make


def test_a_stage_from_other_weights_waits_for_the_step_that_takes_them() -> None:
    plan = chain(StageSettings(kind="rl", steps=2, groups_per_step=2, group_size=2, start_from="model"))
    assert plan.observe_step(step_of(plan, plan.admit(0.0))) == "stage_ended"
    assert plan.admit(0.0) == [] and not plan.starved
    taken = Step(run_id="r", step=2, stage="rl", stage_index=1, stage_step=0, policy_version=2)
    assert plan.observe_step(taken) == "advanced"
    assert {group.oldest_version for group in plan.admit(0.0)} == {2}
