"""The rollout service on a real broker with the tiny model."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from services.rollout.engines.decoder import load_model
from shared.bus.topics import TopicNames
from shared.contracts import NOT_SAMPLED, ChatMessage, Control, Headers, Limits, Trajectory
from shared.errors import AttestationError, DependencyError
from shared.settings import Settings
from shared.storage import ObjectStore
from tests.rollout.parts import Bench, make_policy, make_task, serving

Make = Callable[..., Settings]


@pytest.fixture
def settings(make_settings: Make, tiny_folder: Path) -> Settings:
    return make_settings(model={"path": str(tiny_folder)}, rollout={"max_batch": 8, "max_batch_tokens": 1024})


@pytest.fixture
def weights(tiny_folder: Path) -> Path:
    return tiny_folder / "model.safetensors"


def full_logprobs(folder: Path, token_ids: np.ndarray) -> np.ndarray:
    ids = torch.from_numpy(token_ids.astype(np.int64))[None]
    with torch.no_grad():
        logits = load_model(str(folder), "float64", "cpu")(input_ids=ids).logits[0, :-1]
    picked = torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None])[:, 0]
    return np.concatenate([[0.0], picked.numpy()])


def test_a_task_becomes_one_exact_trajectory_a_slot(
    settings: Settings, weights: Path, tiny_folder: Path
) -> None:
    task = make_task(settings, 7, samples=4, attempt=2)

    async def body() -> list[Any]:
        async with serving(settings) as (bench, _, _):
            await bench.announce(make_policy(settings, weights, 0))
            await bench.schedule(task)
            topic = bench.names.trajectories("single_turn", "normal")
            seen = await bench.read(topic, lambda seen: len(seen) >= 4)
            beat = await bench.heartbeat(lambda beat: beat.processed == 1)
            assert (beat.policy_version, beat.service, beat.worker_id) == (0, "rollout", "rollout-0")
            return seen

    seen = asyncio.run(body())
    assert {message.slot for message, _ in seen} == set(task.slots())
    assert len({message.trajectory_id for message, _ in seen}) == 4
    for message, headers in seen:
        assert isinstance(message, Trajectory)
        assert (headers.purpose, headers.attempt, headers.policy_version) == ("train", 2, 0)
        assert (message.first_version, message.last_version, message.sampling_mode) == (0, 0, "sampled")
        (sequence,) = message.sequences
        mask, versions = sequence.loss_mask.astype(bool), sequence.versions()
        assert (versions == np.where(mask, 0, NOT_SAMPLED)).all()
        assert mask[-1] and not mask[0] and (np.diff(mask.astype(int)) >= 0).all()
        want = full_logprobs(tiny_folder, sequence.token_ids)
        assert np.abs(sequence.logprobs - want * mask).max() < 1e-4
        assert message.stop_reason == ("stop" if sequence.token_ids[-1] == 2 else "length")
        assert message.timings.total >= message.timings.decode > 0


def test_a_redelivered_task_draws_the_same_tokens(settings: Settings, weights: Path) -> None:
    async def body() -> list[Any]:
        async with serving(settings) as (bench, _, _):
            await bench.announce(make_policy(settings, weights, 0))
            task = make_task(settings, 1, samples=2)
            await bench.schedule(task, task, make_task(settings, 1, samples=2, attempt=2))
            return await bench.trajectories(6)

    tokens: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for made in asyncio.run(body()):
        place = (made.slot.sample_index, made.attempt)
        tokens.setdefault(place, set()).add(tuple(made.sequences[0].token_ids.tolist()))
    assert all(len(texts) == 1 for texts in tokens.values())
    assert len(set.union(*tokens.values())) == 4


def test_demonstrations_need_no_policy_and_carry_the_prompt_exactly(settings: Settings) -> None:
    task = make_task(
        settings, 3, samples=1, stage="sft", demonstration=(ChatMessage(role="assistant", content="4"),)
    )

    async def body() -> list[Any]:
        async with serving(settings) as (bench, _, _):
            await bench.schedule(task)
            return await bench.trajectories(1)

    (made,) = asyncio.run(body())
    (sequence,) = made.sequences
    assert (made.stop_reason, made.sampling_mode, made.final_answer) == (
        "demonstration",
        "demonstration",
        "4",
    )
    assert int(sequence.loss_mask.sum()) == 2 and sequence.token_ids[-1] == 2
    assert not sequence.logprobs.any() and (sequence.versions() == NOT_SAMPLED).all()
    assert made.last_version == NOT_SAMPLED


def test_a_task_waits_for_its_policy_and_newest_wins(settings: Settings, weights: Path) -> None:
    async def body() -> list[Any]:
        bench = Bench(settings)
        for version in (0, 1, 2):
            await bench.announce(make_policy(settings, weights, version))
        await bench.announce(make_policy(settings, weights, 9, run_id="another-run"))
        await bench.close()
        async with serving(settings) as (bench, _, _):
            await bench.schedule(make_task(settings, 1, min_policy_version=3))
            beat = await bench.heartbeat(lambda beat: beat.waits_for == "policy 3")
            assert (beat.state, beat.policy_version) == ("waiting", 2)
            await bench.announce(make_policy(settings, weights, 3))
            return await bench.trajectories(2)

    assert {made.last_version for made in asyncio.run(body())} == {3}


def test_foreign_runs_expired_tasks_and_long_prompts(settings: Settings, weights: Path) -> None:
    past = int(time.time() * 1000) - 1000
    tasks = [
        make_task(settings, 1, run_id="another-run"),
        make_task(settings, 2, samples=2, deadline_ms=past),
        make_task(settings, 3, samples=1, limits=Limits(context_tokens=10)),
        make_task(settings, 4, samples=1, limits=Limits(context_tokens=18), sampling={"max_tokens": 100}),
    ]

    async def body() -> list[Any]:
        async with serving(settings) as (bench, _, _):
            await bench.announce(make_policy(settings, weights, 0))
            await bench.schedule(*tasks)
            await bench.heartbeat(lambda beat: beat.processed == 4)
            return await bench.trajectories(2)

    made = {(m.slot.group_id, m.slot.sample_index): m for m in asyncio.run(body())}
    # The expired task left nothing: a fault would fill the slots of the attempt that the scheduler sends next.
    assert set(made) == {("0-rl-0000003", 0), ("0-rl-0000004", 0)}
    full = made[("0-rl-0000003", 0)]
    assert full.stop_reason == "length" and "leave no room in a context of 10" in full.fault
    assert full.sampled_tokens() == 0
    cut = made[("0-rl-0000004", 0)]
    assert len(cut.sequences[0].token_ids) <= 18


def test_a_task_that_cannot_be_attempted_ends_as_faults(settings: Settings, weights: Path) -> None:
    """A tool that nobody has: retried with a delay, then a dead letter, then a word for every slot."""

    async def body() -> list[Any]:
        async with serving(settings) as (bench, _, _):
            await bench.announce(make_policy(settings, weights, 0))
            await bench.schedule(make_task(settings, 1, samples=2, tools=("pyhton",)))
            made = await bench.trajectories(2)
            await bench.heartbeat(lambda beat: beat.gauges.get("dead") == 1)
            return made

    made = asyncio.run(body())
    assert [m.stop_reason for m in made] == ["infrastructure"] * 2
    assert all(
        "not attempted after 3 deliveries" in m.fault and "did you mean 'python'" in m.fault for m in made
    )


@pytest.mark.parametrize("kind", ["bytes", "canary", "tensors"])
def test_a_policy_that_cannot_be_attested_stops_production(
    settings: Settings, weights: Path, tmp_path: Path, kind: str
) -> None:
    good = make_policy(settings, weights, 1)
    if kind == "bytes":
        place = Path(good.weights.uri.removeprefix("file://"))
        raw = bytearray(place.read_bytes())
        raw[len(raw) // 2] ^= 1
        place.write_bytes(bytes(raw))
    elif kind == "canary":
        wrong = good.canary.model_copy(update={"logprobs": good.canary.logprobs - np.float32(0.01)})
        good = good.model_copy(update={"canary": wrong})
    else:
        tensors = load_file(str(weights))
        tensors.pop("model.norm.weight")
        (tmp_path / "other").mkdir()
        for name in ("config.json", "model.safetensors"):
            (tmp_path / "other" / name).write_bytes((weights.parent / name).read_bytes())
        announced = make_policy(settings, weights, 1)
        save_file(tensors, str(tmp_path / "short.safetensors"))
        ref = ObjectStore(settings.storage_uri).put_file("short", tmp_path / "short.safetensors")
        changed = announced.weights.model_copy(update={"uri": ref.uri, "sha256": ref.sha256})
        good = announced.model_copy(update={"weights": changed})

    async def body() -> Any:
        bench = Bench(settings)
        await bench.announce(good)
        with pytest.raises(
            AttestationError, match="policy 1 cannot be attested, this worker stops producing"
        ):
            async with serving(settings) as (_, _, service):
                await asyncio.wait({service}, timeout=20)
        beat = await bench.heartbeat(lambda beat: beat.state == "failed")
        await bench.close()
        return beat

    beat = asyncio.run(body())
    assert "cannot be attested" in beat.waits_for and beat.policy_version == -1


def test_the_end_of_the_run_ends_the_service(settings: Settings) -> None:
    """Also while a task waits for a policy that will never come."""

    async def body() -> float:
        async with serving(settings) as (bench, _, service):
            await bench.schedule(make_task(settings, 1))
            await bench.heartbeat(lambda beat: beat.in_flight == 1)
            began = time.monotonic()
            end = Control(run_id=settings.run.name, kind="end", reason="test")
            await bench.producer.send(TopicNames(settings.bus.namespace).control, end)
            await asyncio.wait_for(service, 15)
            return time.monotonic() - began

    assert asyncio.run(body()) < settings.bus.drain_s


def test_a_stop_drains_what_runs(settings: Settings, weights: Path) -> None:
    """Nothing is lost and nothing is done twice over a stop and a start."""

    async def body() -> list[Any]:
        async with serving(settings) as (bench, _, _):
            await bench.announce(make_policy(settings, weights, 0))
            await bench.schedule(*(make_task(settings, i, samples=2) for i in range(30)))
            await bench.trajectories(5)
        async with serving(settings) as (bench, _, _):
            return await bench.trajectories(60)

    slots = [(made.slot.group_id, made.slot.sample_index) for made in asyncio.run(body())]
    assert len(slots) == len(set(slots)) == 60


def test_one_trace_from_task_to_trajectory(make_settings: Make, tiny_folder: Path, weights: Path) -> None:
    settings = make_settings(
        model={"path": str(tiny_folder)}, telemetry={"traces": "file", "heartbeat_s": 0.2}
    )
    parent = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"

    async def body() -> list[Any]:
        async with serving(settings) as (bench, _, _):
            await bench.announce(make_policy(settings, weights, 0))
            task = make_task(settings, 1, samples=2)
            topic = bench.names.tasks("single_turn", "normal")
            await bench.producer.send(topic, task, Headers(traceparent=parent))
            made = bench.names.trajectories("single_turn", "normal")
            return await bench.read(made, lambda seen: len(seen) >= 2)

    seen = asyncio.run(body())
    (file,) = (settings.run_folder / "traces").glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    spans = {line["span_id"]: line for line in lines if line.get("end_ns")}
    (attempt,) = (span for span in spans.values() if span["name"] == "attempt")
    assert (attempt["trace_id"], attempt["parent_span_id"]) == ("ab" * 16, "cd" * 8)
    for message, headers in seen:
        sample = spans[headers.traceparent.split("-")[2]]
        assert (sample["name"], sample["parent_span_id"]) == ("sample", attempt["span_id"])
        assert sample["attributes"]["temper.trajectory_id"] == message.trajectory_id


def test_abandoned_groups_are_not_attempted(settings: Settings, weights: Path) -> None:
    async def body() -> list[Any]:
        bench = Bench(settings)
        abandon = Control(run_id=settings.run.name, kind="abandon", groups=("0-rl-0000001",))
        await bench.producer.send(bench.names.control, abandon)
        await bench.announce(make_policy(settings, weights, 0))
        await bench.schedule(make_task(settings, 1), make_task(settings, 2))
        await bench.close()
        async with serving(settings) as (bench, _, _):
            await bench.heartbeat(lambda beat: beat.processed == 2)
            return await bench.trajectories(2)

    assert {made.slot.group_id for made in asyncio.run(body())} == {"0-rl-0000002"}


def test_a_remote_store_is_downloaded_and_tidied(
    make_settings: Make, tiny_folder: Path, weights: Path, tmp_path: Path
) -> None:
    """Any store of fsspec: here one in memory; the digest decides, and only the newest download is kept."""
    settings = make_settings(model={"path": str(tiny_folder)}, storage={"uri": f"memory://{tmp_path.name}"})

    async def body() -> None:
        async with serving(settings) as (bench, _, _):
            for version in (0, 1):
                policy = make_policy(settings, changed(weights, tmp_path / f"v{version}", version), version)
                await bench.announce(policy)
                await bench.heartbeat(lambda beat, version=version: beat.policy_version == version)

    asyncio.run(body())
    assert len(list((settings.run_folder / "cache" / "policies").iterdir())) == 1


def changed(weights: Path, folder: Path, version: int) -> Path:
    """The tiny model with other weights, as a folder of its own."""
    folder.mkdir()
    (folder / "config.json").write_bytes((weights.parent / "config.json").read_bytes())
    tensors = {name: tensor * (1 + version / 100) for name, tensor in load_file(str(weights)).items()}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder / "model.safetensors"


def test_the_instant_engine_serves_the_same_loop(
    make_settings: Make, tiny_folder: Path, weights: Path
) -> None:
    settings = make_settings(model={"path": str(tiny_folder)}, rollout={"engine": "instant"})

    async def body() -> list[Any]:
        async with serving(settings) as (bench, _, _):
            await bench.announce(make_policy(settings, weights, 0))
            await bench.schedule(*(make_task(settings, i, samples=8) for i in range(8)))
            return await bench.trajectories(64)

    made = asyncio.run(body())
    assert {m.final_answer for m in made} == set("0123456789")
    assert all(m.sampled_tokens() == 2 and not m.sequences[0].logprobs.any() for m in made)


def test_a_missing_model_is_said_before_it_ends(make_settings: Make, tmp_path: Path) -> None:
    settings = make_settings(model={"path": str(tmp_path / "nothing")})

    async def body() -> Any:
        bench = Bench(settings)
        with pytest.raises(DependencyError, match="temper models prepare"):
            async with serving(settings) as (_, _, service):
                await asyncio.wait({service}, timeout=20)
        beat = await bench.heartbeat(lambda beat: beat.state == "failed")
        await bench.close()
        return beat

    assert "holds no config.json" in asyncio.run(body()).waits_for


def test_an_engine_that_cannot_take_the_weights_ends_the_service_in_one_line(
    settings: Settings, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(model: Any, path: Path) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")

    policy = make_policy(settings, weights, 0)
    monkeypatch.setattr("services.rollout.engines.decoder.load_weights", no_memory)

    async def body() -> None:
        async with serving(settings) as (bench, _, service):
            await bench.announce(policy)
            await asyncio.wait({service}, timeout=60)

    words = "policy 0: the engine cannot take its weights: OutOfMemoryError: CUDA out of memory. Tried"
    with pytest.raises(DependencyError, match=words):
        asyncio.run(body())


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "code"), [(0.01, 3), (0.0, 0)])
def test_exit_codes_of_the_process(
    settings: Settings, weights: Path, tmp_path: Path, shift: float, code: int
) -> None:
    """A wrong canary ends it with 3; with the right one, SIGTERM ends it with 0."""
    policy = make_policy(settings, weights, 0)
    canary = policy.canary.model_copy(update={"logprobs": policy.canary.logprobs + np.float32(shift)})
    config = tmp_path / "run.toml"
    config.write_text(
        f"""
        run = {{ name = "{settings.run.name}", folder = "{settings.run.folder}" }}
        bus = {{ bootstrap_servers = "{settings.bus.bootstrap_servers}", namespace = "{settings.bus.namespace}",
                partitions = 2, retry_delays_s = [0.2, 0.5], drain_s = 5.0 }}
        model = {{ path = "{settings.model.path}" }}
        domains = [{{ name = "arithmetic" }}]
        stages = [{{ kind = "rl", steps = 1 }}]
        """.replace(",\n", ",")
    )
    command = [sys.executable, "-m", "temper", "rollout", "--config", str(config), "--worker-id", "rollout-7"]
    with (tmp_path / "out.txt").open("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:

            async def body() -> None:
                bench = Bench(settings)
                await bench.announce(policy.model_copy(update={"canary": canary}))
                wanted = "failed" if shift else "idle"
                await bench.heartbeat(
                    lambda beat: beat.worker_id == "rollout-7" and beat.state == wanted, timeout_s=90
                )
                await bench.close()

            asyncio.run(body())
            if not shift:
                process.terminate()
            assert process.wait(30) == code
        finally:
            process.kill()
        out.seek(0)
        text = out.read()
    assert "Traceback" not in text
    assert ("policy 0 cannot be attested" in text) == bool(shift)
