"""Evaluations: completeness, faults, restarts, the agenda."""

from __future__ import annotations

from services.scheduler.agenda import Agenda
from services.scheduler.evaluations import RunningEvaluation
from services.scheduler.held_out import HeldOut
from shared.contracts import Reward, Slot, Step
from shared.settings import EvaluationSettings, StageSettings


def running(instances: int = 3, max_attempts: int = 2) -> RunningEvaluation:
    asked = HeldOut(tuple(range(instances)), instances, instances)
    return RunningEvaluation(
        name="start", stage_index=0, step=0, min_version=0, held_out={"a": asked, "b": asked}, started_s=0.0,
        deadline_s=10.0, max_attempts=max_attempts,
    )  # fmt: skip


def reward(group: str, verdict: str = "passed", value: float | None = 1.0) -> Reward:
    return Reward(
        trajectory_id="t", slot=Slot(run_id="r", group_id=group, sample_index=0), stage="rl", stage_index=0,
        purpose="eval", domain="a", domain_version=1, verdict=verdict, reward=value, policy_version=4,  # type: ignore[arg-type]
    )  # fmt: skip


def test_complete_when_every_instance_has_one_verdict() -> None:
    evaluation = running()
    tasks = evaluation.due(0.0)
    assert len(tasks) == 6 and not evaluation.due(1.0)
    for i, task in enumerate(tasks):
        assert not evaluation.complete
        value = float(i % 2)
        assert evaluation.observe_reward(reward(task.group_id, "passed" if value else "failed", value))
        evaluation.observe_reward(reward(task.group_id, "passed", 1.0))  # a late duplicate changes nothing
    result = evaluation.result("r", 5.0)
    assert evaluation.complete
    assert {n: (d.passed, d.count, d.faulted) for n, d in result.domains.items()} == {
        "a": (1, 3, 0),
        "b": (2, 3, 0),
    }
    assert (result.first_version, result.last_version, result.seconds) == (4, 4, 5.0)


def test_faults_and_lost_instances_are_in_no_pass_rate() -> None:
    evaluation = running(instances=1)
    first, second = evaluation.due(0.0)
    lost = reward(first.group_id, "infrastructure", None)
    evaluation.observe_reward(lost.model_copy(update={"reason": "no attempt: no such program"}))
    assert [t.attempt for t in evaluation.due(10.0)] == [2]
    assert evaluation.due(20.0) == [] and evaluation.complete
    result = evaluation.result("r", 21.0)
    assert all((d.count, d.faulted) == (0, 1) for d in result.domains.values())
    assert {name: d.fault for name, d in result.domains.items()} == {
        "a": "no attempt: no such program",
        "b": "",
    }
    assert second.group_id not in evaluation.verdicts


def test_foreign_groups_are_not_its_own() -> None:
    assert not running().observe_reward(reward("1-rl-0000001"))


def step(number: int, stage_index: int, stage_step: int) -> Step:
    kind = ("sft", "rl")[stage_index]
    return Step(
        run_id="r",
        step=number,
        stage=kind,
        stage_index=stage_index,
        stage_step=stage_step,
        policy_version=number,  # type: ignore[arg-type]
    )


STAGES = (StageSettings(kind="sft", steps=2), StageSettings(kind="rl", steps=4))


def test_the_agenda_names_what_is_missing_and_only_that() -> None:
    agenda = Agenda(STAGES, EvaluationSettings(every_steps=2), {"start", "0-sft-end"})
    agenda.observe_step(step(2, 0, 2), stage_ended=True)
    assert agenda.next() is None and not agenda.blocks_training
    agenda.observe_step(step(4, 1, 2), stage_ended=False)
    assert agenda.next() is not None and agenda.next().name == "1-rl-00002"  # type: ignore[union-attr]
    assert not agenda.blocks_training
    agenda.observe_step(step(6, 1, 4), stage_ended=True)
    assert agenda.blocks_training
    agenda.finish("1-rl-00002")
    assert agenda.next().name == "1-rl-end"  # type: ignore[union-attr]
    agenda.finish("1-rl-end")
    assert agenda.next() is None
