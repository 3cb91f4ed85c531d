"""`temper replay` of runs that train adapters, and of runs whose learner was two processes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from learner_world import World, with_learner
from test_replay import learn, replay, settings_of, told

from services.learner.checkpoint_folders import CheckpointFolders
from shared.settings import Settings, load_settings, parse_settings
from shared.storage import ObjectStore
from tests.brokers import Broker, free_port_pair

ADAPTERS = {"lora": {"rank": 2, "alpha": 4.0, "targets": ["q_proj", "down_proj"]}}
TWO = {"processes": 2, "parallel": {"shard": True}}


def test_adapters_come_out_to_the_bit_and_learn_otherwise(broker: Broker, tmp_path: Path) -> None:
    """Over the end of a stage, so that a reference of adapters is made again, and from within one, so that it is read."""
    settings = settings_of(broker, tmp_path, **ADAPTERS)
    asyncio.run(with_learner(settings, learn))
    for first in (2, 4):
        document = told(replay(settings.run_folder, "--from", str(first), "--json"))
        assert document["same"] and [step["step"] for step in document["steps"]] == [*range(first + 1, 6)]
    other = told(
        replay(settings.run_folder, "--from", "2", "--objective", "dapo", "--json", "--into", "other")
    )
    assert not other["same"] and "weights" in other["steps"][-1]["differs"]
    announced = state_of(load_settings(tmp_path / "runs" / "other" / "run.toml"), 5)["policy"]["weights"]
    assert announced["kind"] == "adapter"


def state_of(settings: Settings, step: int) -> dict[str, Any]:
    folders = CheckpointFolders(ObjectStore(settings.storage_uri), settings.run.name)
    return folders.state(step, folders.manifest(step))


@pytest.mark.slow
def test_what_two_processes_learnt_is_replayed_by_one(broker: Broker, tmp_path: Path) -> None:
    """It adds up in another order: the same to rounding, and the reason is said."""
    settings = settings_of(broker, tmp_path, **TWO)
    asyncio.run(with_two_processes(settings))
    place = settings.run_folder / "objects" / "checkpoints" / settings.run.name / "00000004"
    assert (place / "optimizer-00001-of-00002.safetensors").is_file()
    result = replay(settings.run_folder, "--from", "2", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == (0 if document["same"] else 1)
    assert [step["step"] for step in document["steps"]] == [3, 4, 5]
    for step in document["steps"]:
        before, after = step["recorded"], step["replayed"]
        assert after == {name: pytest.approx(value, rel=1e-3, abs=1e-5) for name, value in before.items()}
        assert "slots" not in step["differs"]
    other = told(
        replay(settings.run_folder, "--from", "3", "--objective", "dapo", "--json", "--into", "other")
    )
    assert not other["same"] and len(other["steps"]) == 2
    if not document["same"]:
        said = replay(settings.run_folder, "--from", "2", "--into", "again").stdout
        assert "is the first that differs" in said and "the run's learner was 2 processes" in said


async def with_two_processes(settings: Settings) -> None:
    world = World(settings)
    with both(settings) as processes:
        try:
            await learn(world, 90.0)
            await world.end()
            for process in processes:
                await asyncio.to_thread(process.join, 60)
            assert [process.exitcode for process in processes] == [0, 0]
        finally:
            await world.close()


@contextmanager
def both(settings: Settings) -> Iterator[list[Any]]:
    """Both ranks, each in a process forked from one that has read the libraries already."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["services.learner.process", "transformers.models.llama.modeling_llama"])
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port_pair())}
    processes = [
        context.Process(
            target=_rank, args=(settings.model_dump_json(), {**place, "RANK": str(rank)}), daemon=True
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for process in processes:
            process.kill()


def _rank(document: str, place: dict[str, str]) -> None:
    from services.learner.service import run

    os.environ.update(place)
    asyncio.run(run(parse_settings(json.loads(document)), "learner-0", asyncio.Event()))
