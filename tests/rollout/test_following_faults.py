"""What goes wrong on the way of a policy, and how it ends: the rollout service on a real broker with real weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from services.learner.deltas import DeltaPublisher
from services.learner.tensorfile import write_tensors
from services.rollout.engines.decoder import Decoder
from shared.contracts import Policy
from shared.errors import AttestationError, StorageError
from shared.settings import Settings
from shared.storage import ObjectStore
from shared.weights.settings import PublishingSettings
from temper.up.restart import Exit, GiveUp, RestartAfter, RestartPolicy
from tests.publishing.published import damaged
from tests.rollout.parts import make_policy, make_task, serving
from tests.storage.shaky import ShakyFileSystem, shaky_store

Make = Callable[..., Settings]


@pytest.fixture
def far(tmp_path: Path) -> Iterator[ObjectStore]:
    with shaky_store(tmp_path) as store:
        yield store


@pytest.fixture
def settings(make_settings: Make, tiny_folder: Path, far: ObjectStore) -> Settings:
    return make_settings(
        model={"path": str(tiny_folder)},
        rollout={"max_batch": 8, "max_batch_tokens": 2048},
        storage={"uri": far.uri, "patience_s": 20.0},
    )


class Versions:
    """Policies of the tiny model, each a few changed weights from the one before, announced with their deltas."""

    def __init__(self, settings: Settings, tiny_folder: Path, folder: Path) -> None:
        self._settings = settings
        self._config = (tiny_folder / "config.json").read_bytes()
        self._folder = folder
        self._tensors = load_file(str(tiny_folder / "model.safetensors"))
        self.store = ObjectStore(settings.storage_uri)
        self._deltas = DeltaPublisher(
            self.store, settings.run.name, PublishingSettings(deltas="always"), torch.float32
        )

    def next(self, version: int) -> Policy:
        place = self._folder / f"v{version}" / "model.safetensors"
        place.parent.mkdir()
        (place.parent / "config.json").write_bytes(self._config)
        for tensor in self._tensors.values():
            tensor.view(-1)[version::97] *= 1.05
        written = write_tensors(place, self._tensors, entries=True)
        policy = make_policy(self._settings, place, version)
        weights = policy.weights.model_copy(update={"tensors": written.tensors})
        assert weights.sha256 == written.sha256
        deltas = self._deltas.publish(version, 0, self._tensors, weights)
        return policy.model_copy(update={"weights": weights, "deltas": deltas})


@pytest.fixture
def versions(settings: Settings, tiny_folder: Path, tmp_path: Path) -> Versions:
    return Versions(settings, tiny_folder, tmp_path)


def serves(version: int) -> Callable[[Any], bool]:
    return lambda beat: beat.policy_version == version


def test_running_samples_go_on_under_policies_that_came_as_deltas(
    settings: Settings, versions: Versions
) -> None:
    """The canaries are of the full weights: what a delta made reproduces them."""
    task = make_task(settings, 1, samples=8, sampling={"max_tokens": 250, "temperature": 1.0})

    async def body() -> tuple[list[Any], list[Any]]:
        async with serving(settings) as (bench, _, _):
            await bench.announce(versions.next(0))
            beats = [await bench.heartbeat(serves(0))]
            await bench.schedule(task)
            await bench.heartbeat(lambda beat: beat.gauges.get("sampled_tokens", 0) > 20)
            for version in (1, 2):
                policy = versions.next(version)
                await bench.announce(policy)
                beats.append(await bench.heartbeat(serves(version)))
                assert beats[-1].gauges["policy_moved_bytes"] == policy.deltas[-1].size_bytes
            return beats, await bench.trajectories(8, timeout_s=60)

    beats, made = asyncio.run(body())
    moved = [beat.gauges["policy_moved_bytes"] for beat in beats]
    assert moved[1] < moved[0] / 5 and moved[2] < moved[0] / 5
    spans = {tuple(span.version for span in m.sequences[0].version_spans[1:]) for m in made}
    assert any(len(versions) > 1 and list(versions) == sorted(versions) for versions in spans), spans


def test_a_failed_canary_is_tried_again_from_the_full_weights_and_served(
    settings: Settings, versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the engine got wrong once (a bad copy on the way to its device) it gets right the second time."""
    policies = [versions.next(0), versions.next(1)]
    load, loads = Decoder.load, []

    def wrong_once(self: Decoder, weights: Path) -> None:
        load(self, weights)
        loads.append(weights)
        if len(loads) == 2:
            with torch.inference_mode():
                next(iter(self.model.parameters())).mul_(1.5)

    async def body() -> Any:
        async with serving(settings) as (bench, _, _):
            await bench.announce(policies[0])
            await bench.heartbeat(serves(0))
            await bench.announce(policies[1])
            return await bench.heartbeat(serves(1))

    monkeypatch.setattr(Decoder, "load", wrong_once)
    beat = asyncio.run(body())
    assert len(loads) == 3
    assert beat.gauges["policy_moved_bytes"] == policies[1].weights.size_bytes, "fetched afresh, and whole"


def test_a_damaged_delta_is_no_failure_to_attest(settings: Settings, versions: Versions) -> None:
    async def body() -> Any:
        async with serving(settings) as (bench, _, _):
            await bench.announce(versions.next(0))
            await bench.heartbeat(serves(0))
            policy = versions.next(1)

            def flip(data: bytearray) -> None:
                data[-9] ^= 1

            damaged(versions.store, policy.deltas[0].uri, flip)
            await bench.announce(policy)
            return policy, await bench.heartbeat(serves(1))

    policy, beat = asyncio.run(body())
    assert beat.gauges["policy_moved_bytes"] == policy.weights.size_bytes


def test_a_store_that_is_away_delays_a_policy_and_nothing_else(
    settings: Settings, versions: Versions
) -> None:
    """What is served goes on; whoever waits for the new policy is told what for."""

    async def body() -> Any:
        async with serving(settings) as (bench, _, _):
            await bench.announce(versions.next(0))
            await bench.heartbeat(serves(0))
            policy = versions.next(1)
            ShakyFileSystem.away = True
            await bench.announce(policy)
            await bench.schedule(make_task(settings, 1, samples=2))
            assert {made.last_version for made in await bench.trajectories(2)} == {0}
            await bench.schedule(make_task(settings, 2, samples=2, min_policy_version=1))
            beat = await bench.heartbeat(lambda beat: "no route to host" in beat.waits_for)
            ShakyFileSystem.away = False
            await bench.heartbeat(serves(1))
            return beat, await bench.trajectories(4)

    beat, made = asyncio.run(body())
    assert beat.state == "waiting" and beat.waits_for.startswith("policy 1 (policy 1: ")
    assert [m.last_version for m in made if m.slot.group_id.endswith("2")] == [1, 1]


@pytest.mark.parametrize("newer", [True, False])
def test_a_policy_whose_object_was_pruned(
    make_settings: Make, tiny_folder: Path, far: ObjectStore, tmp_path: Path, newer: bool
) -> None:
    """A newer one takes its place, or the worker ends with a line that says which and why."""
    settings = make_settings(
        model={"path": str(tiny_folder)}, storage={"uri": far.uri, "patience_s": 20.0 if newer else 1.5}
    )
    versions = Versions(settings, tiny_folder, tmp_path)

    async def body() -> Any:
        async with serving(settings) as (bench, _, service):
            pruned = versions.next(0)
            far.delete("policies")
            await bench.announce(pruned)
            beat = await bench.heartbeat(lambda beat: "no such object" in beat.waits_for)
            assert beat.waits_for.startswith("the first policy (policy 0: ")
            if newer:
                await bench.announce(versions.next(1))
                return await bench.heartbeat(serves(1))
            await asyncio.wait({service}, timeout=30)
            return await bench.heartbeat(lambda beat: beat.state == "failed")

    if newer:
        assert asyncio.run(body()).state != "failed"
        return
    with pytest.raises(StorageError, match=r"policy 0 could not be read for 2 s .*no such object") as caught:
        asyncio.run(body())
    assert caught.value.exit_code == 5


def test_what_temper_up_does_about_a_worker_that_left() -> None:
    """It starts it again while the run moves without it; a run that stands still ends with the worker's words."""
    words = str(
        AttestationError("policy 3 cannot be attested, this worker stops producing: canary token 7 has …")
    )
    code = AttestationError.exit_code
    alone, beside_others = RestartPolicy(), RestartPolicy()
    ends = [alone.on_exit(Exit(code, 30.0, True, words, run_moves=5)) for _ in range(3)]
    assert [type(end) for end in ends] == [RestartAfter, RestartAfter, GiveUp]
    for move in range(20):
        assert isinstance(beside_others.on_exit(Exit(code, 30.0, True, words, run_moves=move)), RestartAfter)
