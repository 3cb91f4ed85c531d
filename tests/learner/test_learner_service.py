"""The learner process on a broker: what it reads, announces and survives."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_builders import demonstration, trajectory
from learner_models import small_policy
from learner_world import STAGES, World, steps, versions, with_learner
from transformers import AutoModelForCausalLM

from services.learner.process import LearnerService
from services.learner.told import read_told
from services.learner.trainer import Trainer
from shared.bus.producer import TypedProducer
from shared.contracts import (
    Control,
    Evaluation,
    Heartbeat,
    Notice,
    Policy,
    Step,
)
from shared.errors import DependencyError, StorageError, TemperError
from shared.settings import Settings
from shared.storage import ObjectStore
from shared.telemetry.span_log import read_spans


def test_a_run_from_demonstrations_to_rewards(learner_settings: Callable[..., Settings]) -> None:
    settings = learner_settings(telemetry={"traces": "file", "heartbeat_s": 0.1})

    async def script(world: World) -> None:
        await world.until(lambda seen: versions(seen) == [0], "version 0 is announced")
        await world.attempt(trajectory("0-sft-0000000", size=1).model_copy(update={"purpose": "eval"}), 1.0)
        for index in range(2):
            await world.attempt(demonstration(f"0-sft-{index:07d}"))
        await world.until(lambda seen: 1 in steps(seen), "the sft step")
        await world.group(0, version=1)
        await world.group(0, version=1, attempt=2)  # a second attempt at every slot
        await world.group(1, version=1, values=(1.0, 1.0))
        await world.until(lambda seen: 2 in steps(seen), "the first rl step")
        await world.group(2, version=0)  # sampled two versions ago: max_lag is 1
        await world.until(
            lambda seen: any(isinstance(m, Notice) for m in seen), "the notice of a stale group"
        )
        await world.group(3, version=1)
        await world.group(4, version=2)
        await world.until(lambda seen: 3 in steps(seen), "the last step")
        await world.until(
            lambda seen: any(isinstance(m, Heartbeat) and m.waits_for == "the end of the run" for m in seen),
            "the learner waits for the end",
        )
        await world.end()
        await asyncio.sleep(30)  # the learner leaves by itself

    world = asyncio.run(with_learner(settings, script))
    assert versions(world.seen) == [0, 1, 2, 3]
    told = {step.step: step for step in world.of(Step)}
    assert [told[n].stage for n in (1, 2, 3)] == ["sft", "rl", "rl"]
    fates = Counter(fate for step in told.values() for group in step.groups for fate in group.fates)
    assert fates == {"trained": 2 + 2 + 4, "zero_signal": 2, "stale": 2}
    assert sum(step.tokens.get("duplicate", 0) for step in told.values()) == 4
    assert told[3].staleness_max == 1
    assert {"wait", "compute", "checkpoint", "publish", "total"} <= set(told[2].seconds)
    assert world.of(Notice)[0].groups[0].fates == ("stale", "stale")
    spans = read_spans(settings.run_folder / "traces").spans
    train = [span for span in spans if span.name == "train"]
    assert sum(span.attributes.get("temper.fate") == "trained" for span in train) == 8
    assert all(span.parent_span_id for span in train)


def test_the_announced_weights_are_the_ones_that_score_the_canary(
    learner_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = learner_settings()

    async def script(world: World) -> None:
        for index in range(2):
            await world.attempt(demonstration(f"0-sft-{index:07d}"))
        await world.until(lambda seen: 1 in versions(seen), "version 1")

    world = asyncio.run(with_learner(settings, script))
    first, second = world.of(Policy)[:2]
    assert first.weights.sha256 != second.weights.sha256
    store = ObjectStore(settings.storage_uri)
    path = store.fetch(second.weights.uri, second.weights.sha256, tmp_path / "cache")
    model = AutoModelForCausalLM.from_pretrained(settings.model.path)
    from safetensors.torch import load_file

    missing, unexpected = model.load_state_dict(load_file(path), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    at = 0
    for length in second.canary.lengths.tolist():
        ids = torch.tensor(second.canary.token_ids[at : at + length], dtype=torch.int64)
        logprobs = torch.log_softmax(model(ids[None]).logits[0], -1)[:-1].gather(1, ids[1:, None]).squeeze(1)
        announced = torch.tensor(second.canary.logprobs[at : at + length])
        assert announced[0] == 0
        torch.testing.assert_close(announced[1:], logprobs, rtol=0, atol=second.canary.tolerance)
        at += length


def test_a_stop_and_a_start_go_on(learner_settings: Callable[..., Settings]) -> None:
    settings = learner_settings()

    async def first(world: World) -> None:
        for index in range(2):
            await world.attempt(demonstration(f"0-sft-{index:07d}"))
        await world.until(lambda seen: 1 in steps(seen), "the sft step")
        await world.group(0, version=1)  # half a batch, read and not yet trained
        await asyncio.sleep(0.5)

    async def second(world: World) -> None:
        await world.until(lambda seen: versions(seen).count(1) == 2, "version 1 is announced again")
        await world.group(1, version=1)
        await world.until(lambda seen: 2 in steps(seen), "the step with both halves")

    asyncio.run(with_learner(settings, first))
    world = asyncio.run(with_learner(settings, second))
    told = [step for step in world.of(Step) if step.step == 2]
    assert len(told) == 1 and sorted(g.group_id for g in told[0].groups) == ["1-rl-0000000", "1-rl-0000001"]
    assert steps(world.seen).count(1) == 1  # told already, not told again


def test_abandoned_groups_are_given_up(learner_settings: Callable[..., Settings]) -> None:
    settings = learner_settings(stages=[{**STAGES[1], "steps": 1}])

    async def script(world: World) -> None:
        await world.until(lambda seen: versions(seen) == [0], "version 0")
        await world.attempt(trajectory("0-rl-0000000", 0), 1.0)
        abandon = Control(run_id=settings.run.name, kind="abandon", groups=("0-rl-0000000", "0-rl-0000007"))
        await world.producer.send(world.names.control, abandon)
        await world.until(lambda seen: any(isinstance(m, Notice) for m in seen), "the notice")

    world = asyncio.run(with_learner(settings, script))
    given_up = {group.group_id: group.fates for group in world.of(Notice)[0].groups}
    assert given_up == dict.fromkeys(("0-rl-0000000", "0-rl-0000007"), ("expired", "expired"))


def test_a_paused_learner_takes_no_batch_until_it_is_resumed(
    learner_settings: Callable[..., Settings],
) -> None:
    bound = {"metric": "logprob_gap_mean", "limit": 0.0, "action": "pause"}
    settings = learner_settings(
        stages=[{**STAGES[1], "steps": 3, "groups_per_step": 1}],
        guard={"bounds": [bound]},
        telemetry={"traces": "none", "heartbeat_s": 0.1},
    )

    def told(world: World) -> list[Control]:
        return [message for message in world.seen if isinstance(message, Control)]

    async def feed(world: World, index: int) -> None:
        await world.group(index, version=0, stage=0)

    async def first(world: World) -> None:
        await world.until(lambda seen: versions(seen) == [0], "version 0")
        await feed(world, 0)
        await world.until(lambda seen: any(isinstance(m, Control) for m in seen), "the pause is told")
        (pause,) = told(world)
        assert (pause.kind, pause.step) == ("pause", 1) and "paused: logprob_gap_mean" in pause.reason
        assert [m.action for m in world.of(Step)] == ["pause"]
        await feed(world, 1)
        await world.until(
            lambda seen: any(isinstance(m, Heartbeat) and "temper resume" in m.waits_for for m in seen),
            "the learner says what it waits for",
        )
        await asyncio.sleep(0.5)
        assert steps(world.seen) == [1]

    async def second(world: World) -> None:
        await world.until(lambda seen: len(told(world)) >= 2, "a restarted learner is paused all the same")
        resume = Control(run_id=settings.run.name, kind="resume", body={"step": 1})
        await world.producer.send(world.names.control, resume)
        await world.until(lambda seen: 2 in steps(seen), "the next batch is taken")
        await world.until(lambda seen: any(m.step == 2 for m in told(world)), "and paused again")

    asyncio.run(with_learner(settings, first))
    asyncio.run(with_learner(settings, second))


def test_a_stage_from_other_weights_waits_for_the_evaluation_of_the_one_before(
    learner_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    small_policy(seed=4).model.save_pretrained(str(tmp_path / "other"))
    settings = learner_settings(
        stages=[STAGES[0], {**STAGES[1], "steps": 1, "start_from": str(tmp_path / "other")}],
        telemetry={"traces": "none", "heartbeat_s": 0.1},
    )

    async def script(world: World) -> None:
        for index in range(2):
            await world.attempt(demonstration(f"0-sft-{index:07d}"))
        await world.until(
            lambda seen: any(isinstance(m, Heartbeat) and "0-sft-end" in m.waits_for for m in seen),
            "the learner waits for the evaluation",
        )
        assert versions(world.seen) == [0, 1]
        result = Evaluation(
            run_id=settings.run.name, name="0-sft-end", stage_index=0, step=1, first_version=1, last_version=1,
            domains={},
        )  # fmt: skip
        await world.producer.send(world.names.control, result)
        await world.until(lambda seen: 2 in steps(seen), "the step that takes them")
        await world.group(0, version=1)
        await world.group(1, version=2)
        await world.group(2, version=2)
        await world.until(lambda seen: 3 in steps(seen), "the stage's own step")

    world = asyncio.run(with_learner(settings, script))
    told = {step.step: step for step in world.of(Step)}
    assert (told[2].stage_index, told[2].stage_step, told[2].groups) == (1, 0, ())
    assert "rl starts from" in told[2].notes[0]
    fates = {group.group_id: group.fates for group in told[3].groups}
    assert fates["1-rl-0000000"] == ("stale", "stale") and fates["1-rl-0000002"] == ("trained", "trained")


def test_a_lost_store_is_not_started_over(learner_settings: Callable[..., Settings]) -> None:
    settings = learner_settings()

    async def script(world: World) -> None:
        for index in range(2):
            await world.attempt(demonstration(f"0-sft-{index:07d}"))
        await world.until(lambda seen: 1 in versions(seen), "version 1")

    asyncio.run(with_learner(settings, script))
    ObjectStore(settings.storage_uri).delete(f"checkpoints/{settings.run.name}")
    with pytest.raises(StorageError, match="announced policy 1, its newest checkpoint is 0"):
        asyncio.run(LearnerService(settings, "learner-0").run(asyncio.Event()))


def test_one_learner_a_run(learner_settings: Callable[..., Settings]) -> None:
    settings = learner_settings(bus={"drain_s": 0.3})

    async def script(world: World) -> None:
        await world.until(lambda seen: versions(seen) == [0], "version 0")
        with pytest.raises(TemperError, match="another learner of run"):
            await LearnerService(settings, "learner-1").run(asyncio.Event())

    asyncio.run(with_learner(settings, script))


def test_a_missing_model_is_named(learner_settings: Callable[..., Settings]) -> None:
    settings = learner_settings(model={"path": "/nowhere"})
    with pytest.raises(DependencyError, match="'/nowhere' holds no config.json"):
        asyncio.run(LearnerService(settings, "learner-0").run(asyncio.Event()))


def test_weights_that_are_not_finite_end_the_run_by_name(
    learner_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = learner_settings(stages=[{**STAGES[1], "steps": 1, "groups_per_step": 1}])
    untouched = Trainer.open

    def broken(self: Trainer) -> Any:
        announcement = untouched(self)
        with torch.no_grad():
            next(iter(self._policy.model.parameters()))[0, 0] = float("nan")
        return announcement

    monkeypatch.setattr(Trainer, "open", broken)

    async def script(world: World) -> None:
        for index in range(3):
            await world.group(index, version=0, stage=0)
        await asyncio.sleep(30)

    with pytest.raises(TemperError, match="3 steps in a row were not finite"):
        asyncio.run(with_learner(settings, script))


def test_what_was_told_is_read_back(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings()

    async def story() -> None:
        producer = TypedProducer(settings, "learner-0")
        told = await read_told(settings, producer)
        assert told.newest_version == -1 and not told.steps
        await producer.close()

    asyncio.run(story())
