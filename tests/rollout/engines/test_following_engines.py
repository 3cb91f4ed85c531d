"""Following with real weights: modes, retry, and an engine that dies, over the service on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from services.rollout.engines.base import EngineDiedError
from services.rollout.engines.decoder import Decoder
from shared.contracts import Policy, WeightsRef
from shared.errors import AttestationError
from shared.settings import Settings
from shared.storage import ObjectStore
from tests.rollout.parts import Bench, make_policy, make_task, serving

Make = Callable[..., Settings]


@pytest.fixture
def weights(tiny_folder: Path) -> Path:
    return tiny_folder / "model.safetensors"


def rollout(make_settings: Make, tiny_folder: Path, **changes: Any) -> Settings:
    return make_settings(
        model={"path": str(tiny_folder)}, rollout={"max_batch": 8, "max_batch_tokens": 2048, **changes}
    )


def changed(settings: Settings, weights: Path, folder: Path, version: int) -> Policy:
    """Another policy of the same shapes."""
    folder.mkdir()
    (folder / "config.json").write_bytes((weights.parent / "config.json").read_bytes())
    tensors = {name: tensor * (1 + version / 100) for name, tensor in load_file(str(weights)).items()}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return make_policy(settings, folder / "model.safetensors", version)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["in_flight", "between_turns", "drain"])
def test_a_policy_announced_while_samples_run(
    make_settings: Make, tiny_folder: Path, weights: Path, tmp_path: Path, mode: str
) -> None:
    """In flight the spans of what ran name both; in the other modes every sample has one policy. None is lost."""
    settings = rollout(make_settings, tiny_folder, follow=mode)
    task = make_task(settings, 1, samples=8, sampling={"max_tokens": 250, "temperature": 1.0})
    second = changed(settings, weights, tmp_path / "v1", 1)

    async def body() -> list[Any]:
        async with serving(settings) as (bench, _, _):
            await bench.announce(make_policy(settings, weights, 0))
            await bench.heartbeat(lambda beat: beat.policy_version == 0)
            await bench.schedule(*(task.model_copy(update={"group_id": f"0-rl-{n:07d}"}) for n in range(2)))
            await bench.heartbeat(lambda beat: beat.gauges.get("sampled_tokens", 0) > 20)
            await bench.announce(second)
            made = await bench.trajectories(16, timeout_s=60)
            await bench.heartbeat(lambda beat: beat.policy_version == 1)
            return made

    made = asyncio.run(body())
    assert len({(m.slot.group_id, m.slot.sample_index) for m in made}) == 16
    spans = {tuple(v.version for v in m.sequences[0].version_spans[1:]) for m in made}
    assert {v for versions in spans for v in versions} == {0, 1}
    assert ((0, 1) in spans) == (mode == "in_flight")


@pytest.mark.parametrize("kind", ["truncated", "vocabulary"])
def test_weights_that_cannot_be_served_end_the_worker_with_the_reason(
    make_settings: Make, tiny_folder: Path, weights: Path, tmp_path: Path, kind: str
) -> None:
    settings = rollout(make_settings, tiny_folder)
    policy = make_policy(settings, weights, 0)
    place = tmp_path / "bad.safetensors"
    if kind == "truncated":
        place.write_bytes(weights.read_bytes()[:-1000])
    else:
        tensors = load_file(str(weights))
        embedding = tensors["model.embed_tokens.weight"]
        tensors["model.embed_tokens.weight"] = embedding[:-3].clone()
        save_file(tensors, str(place))
    ref = ObjectStore(settings.storage_uri).put_file("bad", place)
    bad = WeightsRef(uri=ref.uri, sha256=ref.sha256, size_bytes=ref.size_bytes)
    words = {"truncated": "not a readable", "vocabulary": "vocabulary changed"}[kind]

    async def body() -> Any:
        bench = Bench(settings)
        await bench.announce(policy.model_copy(update={"weights": bad}))
        with pytest.raises(AttestationError, match=f"policy 0 cannot be attested.*{words}"):
            async with serving(settings) as (_, _, service):
                await asyncio.wait({service}, timeout=30)
        beat = await bench.heartbeat(lambda beat: beat.state == "failed")
        await bench.close()
        return beat

    assert words in asyncio.run(body()).waits_for


def test_a_damaged_download_is_fetched_afresh_and_served(
    make_settings: Make, tiny_folder: Path, weights: Path, tmp_path: Path
) -> None:
    """What an interrupted download left in the cache is resumed; where it is wrong the retry starts from nothing."""
    settings = make_settings(model={"path": str(tiny_folder)}, storage={"uri": f"memory://{tmp_path.name}"})
    policy = make_policy(settings, weights, 0)
    cache = settings.run_folder / "cache" / "policies"
    cache.mkdir(parents=True)
    (cache / f"{policy.weights.sha256}.partial").write_bytes(b"not the first bytes of this file")

    async def body() -> None:
        async with serving(settings) as (bench, _, _):
            await bench.announce(policy)
            await bench.heartbeat(lambda beat: beat.policy_version == 0)

    asyncio.run(body())
    assert [place.name for place in cache.iterdir()] == [policy.weights.sha256]


@pytest.mark.slow
def test_an_engine_that_dies_mid_episode_loses_nothing(
    make_settings: Make, tiny_folder: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker ends and says why; its tasks are attempted by the next."""
    settings = rollout(make_settings, tiny_folder)
    forward, broken = Decoder._call, {"yes": False}

    def breaking(self: Decoder, *args: Any, **named: Any) -> Any:
        if broken["yes"]:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return forward(self, *args, **named)

    monkeypatch.setattr(Decoder, "_call", breaking)
    tasks = [
        make_task(settings, n, samples=4, sampling={"max_tokens": 200, "temperature": 1.0}) for n in range(3)
    ]

    wanted = {slot for task in tasks for slot in task.slots()}

    async def body() -> tuple[Any, list[Any]]:
        with pytest.raises(EngineDiedError, match="engine died: a decode step failed.*illegal memory access"):
            async with serving(settings) as (bench, _, service):
                await bench.announce(make_policy(settings, weights, 0))
                await bench.schedule(*tasks)
                await bench.heartbeat(lambda beat: beat.gauges.get("sampled_tokens", 0) > 20)
                broken["yes"] = True
                await asyncio.wait({service}, timeout=60)
        broken["yes"] = False
        async with serving(settings) as (bench, _, _):
            beat = await bench.heartbeat(lambda beat: beat.state == "failed")
            topic = bench.names.trajectories("single_turn", "normal")
            # A sample that was done before the crash may come twice: the learner keeps the first.
            seen = await bench.read(topic, lambda seen: {m.slot for m, _ in seen} >= wanted, 60)
            return beat, [message for message, _ in seen]

    beat, made = asyncio.run(body())
    assert "illegal memory access" in beat.waits_for
    assert {m.stop_reason for m in made} <= {"stop", "length"}
    assert {m.slot for m in made} == wanted
    assert all(np.isfinite(m.sequences[0].logprobs).all() for m in made)
