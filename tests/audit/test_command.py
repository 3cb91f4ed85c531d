"""`temper audit` on a real run folder: topics in a dev broker's data, an object store, trace files."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata
from typer import Typer
from typer.testing import CliRunner, Result

from shared.bus import admin
from shared.bus.commit_notes import Range, encode_ahead
from shared.bus.devbroker.running import RunningBroker
from shared.bus.devbroker.settings import DevBrokerSettings
from shared.bus.producer import TypedProducer
from shared.bus.records import Position
from shared.bus.subscriptions import group_name
from shared.bus.topics import TopicNames
from shared.contracts import (
    Canary,
    Control,
    DomainRef,
    GroupFate,
    Headers,
    Policy,
    Reward,
    RoleSpan,
    Sampling,
    Sequence,
    Slot,
    Step,
    Task,
    Trajectory,
    VersionSpan,
    WeightsRef,
)
from shared.errors import ConfigError
from shared.settings import Settings
from shared.storage import ObjectStore
from shared.telemetry.propagation import inject
from shared.telemetry.tracing import Tracing
from temper.audit.check import check
from temper.audit.collect import collect
from temper.audit.place import connected, run_settings
from temper.cli.audit import audit
from temper.up.resolved import resolve, to_toml
from tests.brokers import settings_for

GROUP, DOMAIN = "0-rl-0000000", DomainRef(name="arithmetic", version=1, seed=7)
APP = Typer()
APP.command()(audit)


class SmallRun:
    """One step of two attempts through four tracings, as the services would write it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.run_id = settings.run.name
        self.names = TopicNames(settings.bus.namespace)
        self.store = ObjectStore(settings.storage_uri)
        self.producer = TypedProducer(settings, "made", self.store)
        self.tracing = {
            name: Tracing.start(settings, name, f"{name}-0", environment={})
            for name in ("scheduler", "rollout", "verifier", "learner")
        }

    async def write(self) -> None:
        await self.publish(0)
        sent, _ = await self.schedule()
        rewards = [await self.attempt(sent, index) for index in range(2)]
        with self.tracing["learner"].span("step", root=True, attributes={"temper.step": 1}) as step:
            link = Tracing.traceparent(step)
        for headers, trajectory in rewards:
            with self.tracing["learner"].span(
                "train", parent=headers, links=[link], attributes={"temper.trajectory_id": trajectory}
            ):
                pass
        await self.publish(1)
        group = GroupFate(
            group_id=GROUP, samples=(0, 1), fates=("trained", "trained"),
            trajectory_ids=tuple(t for _, t in rewards), traceparents=tuple(h.traceparent for h, _ in rewards),
        )  # fmt: skip
        await self.producer.send(
            self.names.steps,
            Step(run_id=self.run_id, step=1, stage="rl", stage_index=0, stage_step=1, policy_version=1, groups=(group,),
                 trained_trajectories=2, trained_tokens=4, tokens={"trained": 4}, seconds={"total": 2.0}),
        )  # fmt: skip
        await self.producer.send(self.names.control, Control(run_id=self.run_id, kind="end", reason="done"))
        await self.foreign()
        await self.producer.close()

    async def schedule(self, group_id: str = GROUP) -> tuple[Headers, Position]:
        task = Task(
            run_id=self.run_id, group_id=group_id, stage="rl", stage_index=0, domain=DOMAIN, workload="single_turn",
            priority="normal", purpose="train", messages=(), sampling=Sampling(samples=2, group_size=2),
        )  # fmt: skip
        with self.tracing["scheduler"].span("schedule", attributes={"temper.group_id": group_id}):
            sent = inject(Headers())
            where = await self.producer.send(self.names.tasks("single_turn", "normal"), task)
        return sent, where

    async def attempt(self, task: Headers, index: int) -> tuple[Headers, str]:
        slot, trajectory_id = Slot(run_id=self.run_id, group_id=GROUP, sample_index=index), f"t{index}"
        tokens = Sequence(
            token_ids=np.arange(4, dtype=np.int32), loss_mask=np.array([0, 0, 1, 1], dtype=np.uint8),
            logprobs=np.zeros(4, dtype=np.float32), role_spans=(RoleSpan(length=4, role="assistant"),),
            version_spans=(VersionSpan(length=2, version=-1), VersionSpan(length=2, version=0)),
        )  # fmt: skip
        trajectory = Trajectory(
            trajectory_id=trajectory_id, slot=slot, attempt=1, stage="rl", stage_index=0, purpose="train",
            workload="single_turn", priority="normal", domain=DOMAIN, sampling=Sampling(samples=2, group_size=2),
            sampling_mode="sampled", sequences=(tokens,), stop_reason="stop", first_version=0, last_version=0,
        )  # fmt: skip
        with (
            self.tracing["rollout"].span("attempt", parent=task),
            self.tracing["rollout"].span("sample", attributes={"temper.trajectory_id": trajectory_id}),
        ):
            sent = inject(Headers())
            await self.producer.send(self.names.trajectories("single_turn", "normal"), trajectory)
        with self.tracing["verifier"].span("verify", parent=sent):
            judged = inject(Headers())
            await self.producer.send(
                self.names.rewards,
                Reward(trajectory_id=trajectory_id, slot=slot, stage="rl", stage_index=0, purpose="train",
                       domain="arithmetic", domain_version=1, verdict="passed", reward=1.0),
            )  # fmt: skip
        return judged, trajectory_id

    async def publish(self, version: int) -> None:
        folder = f"checkpoints/{self.run_id}/{version:08d}"
        weights = self.store.put_bytes(f"{folder}/weights.safetensors", b"weights of %d" % version)
        resolved = {"streams": {"0-rl": [version]}, "others": []}
        state = json.dumps({"step": version, "intake": {"resolved": resolved}}).encode()
        files = {
            "state.json": {"sha256": hashlib.sha256(state).hexdigest(), "size_bytes": len(state)},
            "weights.safetensors": {"sha256": weights.sha256, "size_bytes": weights.size_bytes},
        }
        self.store.put_bytes(f"{folder}/state.json", state)
        self.store.put_bytes(f"{folder}/manifest.json", json.dumps({"files": files}).encode())
        canary = Canary(
            token_ids=np.zeros(1, np.int32), lengths=np.ones(1, np.int32), logprobs=np.zeros(1, np.float32)
        )
        await self.producer.send(
            self.names.policies,
            Policy(run_id=self.run_id, version=version, step=version, stage="rl", stage_index=0, canary=canary,
                   checkpoint_uri=self.store.uri_of(folder),
                   weights=WeightsRef(uri=weights.uri, sha256=weights.sha256, size_bytes=weights.size_bytes)),
        )  # fmt: skip

    async def foreign(self) -> None:
        """Records that the audit must not take for this run's: another run's step, and garbage that was buried."""
        other = Step(run_id="other", step=9, stage="rl", stage_index=0, stage_step=9, policy_version=9)
        await self.producer.send(self.names.steps, other)
        where = await self.producer.send_raw(self.names.rewards, b"k", b"\xff garbage")
        await self.producer.send_raw(
            self.names.dead("learner"), b"k", b"\xff garbage",
            [("error.type", b"ContractError"), ("error.message", b"no schema"), ("origin", str(where).encode())],
        )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run whose broker has stopped."""
    data = tmp_path / "runs" / "small" / "broker"
    with RunningBroker(DevBrokerSettings(data_dir=data)) as broker:
        settings = settings_for(
            broker, tmp_path, topics=False, run={"name": "small"}, telemetry={"traces": "file"}
        )
        admin.apply(settings)
        asyncio.run(SmallRun(settings).write())
        alone = settings.model_copy(update={"bus": settings.bus.model_copy(update={"bootstrap_servers": ""})})
        (settings.run_folder / "run.toml").write_text(to_toml(resolve(alone)))
    return settings.run_folder


def run_audit(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(APP, [str(folder), *arguments])


def rules(result: Result) -> set[str]:
    return {finding["rule"] for finding in json.loads(result.output)["findings"]}


def test_a_clean_run_passes_and_can_be_audited_again(folder: Path):
    first = run_audit(folder)
    assert first.exit_code == 0, first.output
    assert "OK" in first.output and "trained" in first.output
    again = run_audit(folder, "--json")
    assert again.exit_code == 0
    body = json.loads(again.output)
    assert body == {
        "run_id": "small", "ok": True, "ended": True, "slots": 2, "fates": {"trained": 2}, "pending": 0,
        "tokens": {"trained": 4, "unresolved": 0}, "steps": 1,
        "repeated_steps": 0, "policies": 2, "traces": 2, "open_spans": 0, "findings": [],
    }  # fmt: skip


def test_a_moved_run_is_still_proved(folder: Path, tmp_path: Path):
    moved = tmp_path / "archive" / "small"
    moved.parent.mkdir()
    shutil.move(folder, moved)
    result = run_audit(moved, "--json")
    assert result.exit_code == 0, result.output


def test_broken_promises_on_disk_are_found(folder: Path):
    store = folder / "objects" / "checkpoints" / "small"
    (store / "00000001" / "weights.safetensors").write_bytes(b"something else")
    (store / "00000000" / "manifest.json").unlink()
    (folder / "traces" / "rollout-0.jsonl").unlink()
    result = run_audit(folder, "--json")
    assert result.exit_code == 1
    assert rules(result) == {"damaged checkpoint", "not durable", "trace not connected"}
    assert "damaged checkpoint" not in rules(run_audit(folder, "--json", "--no-digests"))
    text = run_audit(folder)
    assert text.exit_code == 1 and "findings" in text.output and "policy 0" in text.output


def test_a_state_that_was_changed_is_not_complete(folder: Path):
    (folder / "objects" / "checkpoints" / "small" / "00000001" / "state.json").write_text("{}")
    (folder / "objects" / "checkpoints" / "small" / "00000000" / "manifest.json").write_text("[]")
    result = run_audit(folder, "--json")
    assert rules(result) == {"not durable"}
    assert "hashes to" in result.output and "not readable" in result.output


async def swallow(settings: Settings, retried: bool) -> None:
    """Rollout notes a task as finished ahead of its offset, and no trajectory comes of it."""
    run = SmallRun(settings)
    _, where = await run.schedule("0-rl-0000001")
    if retried:
        retry = run.names.retries("rollout", settings.bus.retry_delays_s[0])
        await run.producer.send_raw(retry, b"0-rl-0000001", b"{}", [("origin", str(where).encode())])
    await run.producer.close()
    consumer = KafkaConsumer(
        group_id=group_name(settings, "rollout"), bootstrap_servers=settings.bus.bootstrap_servers
    )
    notes = encode_ahead(0, [Range(where.offset, where.offset + 1)]) if where.offset else ""
    place = TopicPartition(where.topic, where.partition)
    committed = 0 if where.offset else 1
    consumer.commit({place: OffsetAndMetadata(committed, notes, -1)})
    consumer.close()


@pytest.mark.parametrize("retried", [False, True])
def test_a_task_that_was_committed_and_came_to_nothing_is_lost(folder: Path, retried: bool):
    with connected(run_settings(folder)) as settings:
        asyncio.run(swallow(settings, retried))
    result = run_audit(folder, "--json")
    assert rules(result) == (set() if retried else {"lost"})
    assert json.loads(result.output)["fates"] == {"trained": 2, "queued": 2}


def test_a_running_broker_is_used(folder: Path):
    with RunningBroker(DevBrokerSettings(data_dir=folder / "broker")) as broker:
        (folder / "broker.address").write_text(broker.bootstrap)
        with connected(run_settings(folder)) as settings:
            assert settings.bus.bootstrap_servers == broker.bootstrap
            assert check(collect(settings)).findings == ()
    assert run_audit(folder).exit_code == 0, "a stale address is no broker"


def test_a_broker_at_work_whose_address_nobody_wrote_is_asked_for(folder: Path):
    with (
        RunningBroker(DevBrokerSettings(data_dir=folder / "broker")),
        pytest.raises(ConfigError, match=r"in use by another broker.*TEMPER_BUS__BOOTSTRAP_SERVERS"),
        connected(run_settings(folder)),
    ):
        pass


def test_what_is_no_run_is_refused_by_name(tmp_path: Path, folder: Path):
    for place, said in ((tmp_path / "absent", "no such run folder"), (tmp_path, "holds no run.toml")):
        with pytest.raises(ConfigError, match=said):
            run_settings(place)
    renamed = folder.rename(folder.parent / "other")
    with pytest.raises(ConfigError, match="holds the run 'small'"):
        run_settings(renamed)
    renamed.rename(folder)
    shutil.rmtree(folder / "broker")
    with pytest.raises(ConfigError, match="TEMPER_BUS__BOOTSTRAP_SERVERS"), connected(run_settings(folder)):
        pass
