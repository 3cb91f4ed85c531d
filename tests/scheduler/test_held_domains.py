"""Domains that are held back: nothing new of them, nothing owed to them, the same after a restart, until a lift."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from services.scheduler.mix import DomainMix
from services.scheduler.service import SchedulerService, SchedulerState
from services.scheduler.training import TrainingPlan
from shared.contracts import Control, GroupFate, Headers, Heartbeat
from shared.errors import StalledError
from shared.settings import DomainSettings, Settings, StageSettings
from tests.scheduler.test_service import Others, scheduler

WEIGHTS = {"a": 3.0, "b": 2.0, "c": 1.0}


def hold(run_id: str, domain: str, kind: str = "hold") -> Control:
    return Control(run_id=run_id, kind=kind, domain=domain, reason="two verdicts on one attempt")  # type: ignore[arg-type]


def test_a_control_names_a_domain_exactly_when_it_holds_or_lifts_one() -> None:
    assert hold("r", "d").key() == hold("r", "d", "lift").key() == "r/domain/d"
    with pytest.raises(ValueError, match="hold and lift name one"):
        Control(run_id="r", kind="hold")
    with pytest.raises(ValueError, match="hold and lift name one"):
        Control(run_id="r", kind="end", domain="d")


@given(st.lists(st.sampled_from(["", "a", "b", "c", "ab"]), max_size=12), st.integers(1, 30))
@hypothesis_settings(deadline=None)
def test_what_is_held_is_not_picked_the_rest_keeps_its_proportions_and_nothing_is_caught_up(
    phases: list[str], length: int
) -> None:
    mix = DomainMix(WEIGHTS)
    for held in phases:
        before = dict(mix.counts)
        for _ in range(length):
            assert mix.pick(held)[0] not in held
        got = {name: mix.counts[name] - before[name] for name in WEIGHTS}
        free = sum(weight for name, weight in WEIGHTS.items() if name not in held)
        for name, weight in WEIGHTS.items():
            if name not in held:
                assert abs(got[name] - length * weight / free) <= 3, (held, got)


def test_a_mix_without_a_free_domain_says_so() -> None:
    mix = DomainMix({"a": 1.0})
    assert mix.can_pick() and not mix.can_pick({"a"})
    with pytest.raises(ValueError, match="every domain of the mix is held back: a"):
        mix.pick({"a"})


def plan_of() -> TrainingPlan:
    stages = (StageSettings(kind="rl", steps=50, groups_per_step=4, group_size=2),)
    domains = [DomainSettings(name=name, weight=weight) for name, weight in WEIGHTS.items()]
    return TrainingPlan(stages, domains, run_seed=1, max_lag=1, deadline_s=100.0, max_attempts=3)


@given(st.integers(0, 2**32), st.integers(5, 40))
@hypothesis_settings(max_examples=80, deadline=None)
def test_a_restart_after_holds_schedules_the_same_and_repeats_no_instance(seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    plan, sent = plan_of(), []
    for _ in range(rounds):
        plan.held = rng.choice([set(), {"a"}, {"b", "c"}, {"a", "b", "c"}])
        fresh = plan.admit(0.0)
        assert not {group.domain for group in fresh} & plan.held
        sent += fresh
        done = rng.sample(sent, min(len(sent), 3))
        plan.observe_resolved(GroupFate(group_id=g.group_id, samples=(0,), fates=("trained",)) for g in done)
    again = plan_of()
    for group in rng.sample(sent, len(sent)):
        again.observe_scheduled(group.group_id, 1, 0.0, group.domain, group.seed)
    resolved = [g for g in sent if g.group_id not in plan._in_flight]
    again.observe_resolved(GroupFate(group_id=g.group_id, samples=(0,), fates=("trained",)) for g in resolved)
    assert _contents(again) == _contents(plan)
    everything = [g.group_id for g in sent]
    again.observe_resolved(GroupFate(group_id=g, samples=(0,), fates=("trained",)) for g in everything)
    later = []
    for _ in range(9):
        later += again.admit(0.0)
        again.observe_resolved(
            GroupFate(group_id=g.group_id, samples=(0,), fates=("trained",)) for g in later[-8:]
        )
    assert len({(g.domain, g.seed) for g in sent + later}) == len(sent) + len(later), (
        "an instance comes twice"
    )
    counts = Counter(g.domain for g in later)
    assert all(abs(counts[name] - len(later) * weight / 6) <= 3 for name, weight in WEIGHTS.items()), counts


def _contents(plan: TrainingPlan) -> set[tuple[str, str, int]]:
    return {(g.group_id, g.domain, g.seed) for g in plan._in_flight.values()}


def test_groups_in_flight_of_a_held_domain_are_given_up_once_and_never_sent_again() -> None:
    plan = plan_of()
    fresh = plan.admit(0.0)
    plan.held = {"a"}
    mine = [group.group_id for group in fresh if group.domain == "a"]
    assert mine and plan.give_up_held() == mine and plan.give_up_held() == []
    again, given_up = plan.overdue(1e6)
    assert not given_up and {group.domain for group in again} == {"b", "c"}


def test_a_stage_whose_every_domain_is_held_starves_and_admits_nothing() -> None:
    plan = plan_of()
    plan.held = set(WEIGHTS)
    assert plan.starved and plan.admit(0.0) == []
    plan.held = {"a"}
    assert not plan.starved and plan.admit(0.0)
    assert not plan.starved, "nothing more is wanted now"


def test_names_in_messages_are_told_from_names_in_settings(make_settings: Callable[..., Settings]) -> None:
    place = "tests.verification.faulty:Faulty"
    settings = make_settings(domains=[{"name": place}], auditor={"rules": []})
    state = SchedulerState(settings, {"faulty": place})
    state.observe(hold(settings.run.name, "faulty"), Headers())
    assert list(state.holds) == [place] and state.plan.held == {place}
    state.observe(hold(settings.run.name, place, "lift"), Headers())
    assert not state.holds and not state.plan.held
    kept = make_settings(domains=[{"name": place}], auditor={"never_hold": [place]})
    state = SchedulerState(kept, {"faulty": place})
    state.observe(hold(kept.run.name, "faulty"), Headers())
    assert not state.holds


def two_domains(make_settings: Callable[..., Settings], **scheduler_settings: object) -> Settings:
    return make_settings(
        domains=[{"name": "arithmetic"}, {"name": "sequences"}],
        stages=[{"kind": "rl", "steps": 3, "groups_per_step": 4, "group_size": 2}],
        evaluation={"at_start": False, "instances_per_domain": 2},
        scheduler={"max_lag": 0, **scheduler_settings},
    )


def test_a_held_domain_is_left_out_its_groups_are_abandoned_and_a_lift_brings_it_back(
    make_settings: Callable[..., Settings],
) -> None:
    settings = two_domains(make_settings)

    async def body() -> None:
        others = Others(settings)
        async with scheduler(settings) as running:
            await others.publish(0)
            await others.read_until(lambda: len(others.of("train")) == 4)
            first = others.of("train")
            assert {task.domain.name for task in first} == {"arithmetic", "sequences"}
            await others.producer.send(others.names.control, hold(others.run_id, "sequences"))
            await others.read_until(lambda: any(_abandons(message) for message in others.control))
            (abandon,) = [message for message in others.control if _abandons(message)]
            mine = {task.group_id for task in first if task.domain.name == "sequences"}
            assert isinstance(abandon, Control) and set(abandon.groups) == mine
            await others.train(first)
            await others.read_until(lambda: len(others.of("train")) == 8)
            assert {task.domain.name for task in others.of("train")[4:]} == {"arithmetic"}
        async with scheduler(settings) as running:
            await others.train(others.of("train")[4:])
            await others.read_until(lambda: len(others.of("train")) == 12)
            assert {task.domain.name for task in others.of("train")[8:]} == {"arithmetic"}, (
                "after a restart too"
            )
            await others.producer.send(others.names.control, hold(others.run_id, "sequences", "lift"))
            await others.train(others.of("train")[8:])
            await others.read_until(lambda: len(others.of("eval")) == 4)
            assert {task.domain.name for task in others.of("eval")} == {"arithmetic", "sequences"}
            assert not running.done()
        await others.close()

    asyncio.run(body())


def _abandons(message: object) -> bool:
    return isinstance(message, Control) and message.kind == "abandon"


def test_a_run_whose_every_domain_is_held_says_so_and_stalls_with_the_reason(
    make_settings: Callable[..., Settings],
) -> None:
    settings = two_domains(make_settings, stall_s=2.0)

    async def body() -> None:
        others = Others(settings)
        for name in ("arithmetic", "sequences"):
            await others.producer.send(others.names.control, hold(others.run_id, name))
        await others.publish(0)
        with pytest.raises(StalledError, match=r"a domain to be lifted .*sequences \(two verdicts"):
            await asyncio.wait_for(SchedulerService(settings, "scheduler-0").run(asyncio.Event()), 20)
        await others.close()

    asyncio.run(body())


def test_the_heartbeat_counts_what_is_held(make_settings: Callable[..., Settings]) -> None:
    settings = two_domains(make_settings)
    service = SchedulerService(settings, "scheduler-0")
    service._state.observe(hold(settings.run.name, "sequences"), Headers())
    beat: Heartbeat = service._heartbeat()
    assert beat.gauges["held"] == 1
