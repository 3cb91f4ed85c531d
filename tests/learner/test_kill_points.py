"""kill -9 at every named point of a step: what comes out is what an undisturbed learner makes of the same topics."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from learner_builders import demonstration, sequence, trajectory
from learner_models import VOCABULARY
from learner_world import World, steps

from services.learner.checkpoint_folders import CheckpointFolders
from services.learner.manifest import WEIGHTS
from shared.contracts import Policy, Step
from shared.kill_points import VARIABLE, reached
from shared.settings import Settings
from shared.storage import ObjectStore

KL = {"preset": "grpo", "overrides": {"kl_coefficient": 0.1, "kl_target": 0.01, "kl_horizon": 100}}
STAGES = [
    {"kind": "sft", "steps": 2, "groups_per_step": 2, "learning_rate": 1e-2},
    {"kind": "rl", "steps": 4, "groups_per_step": 2, "group_size": 2, "learning_rate": 1e-2, "objective": KL},
]
LAST = 6
DEATHS = (
    "before_intake:0",
    "mid_backward:1",
    "after_step:2",
    "before_publish:2",
    "mid_checkpoint:3",
    "before_manifest:4",
    "before_steps:5",
    "before_intake:5",
    "before_publish:6",
)


def _learner(document: str, armed: str) -> None:
    import json
    import os

    import torch

    from services.learner.service import run
    from shared.settings import parse_settings

    torch.set_num_threads(1)
    os.environ[VARIABLE] = armed
    asyncio.run(run(parse_settings(json.loads(document)), "learner-0", asyncio.Event()))


def live(settings: Settings, armed: str = "") -> Any:
    """A learner in a process of its own, forked from one that has read the libraries already."""
    context = get_context("forkserver")
    context.set_forkserver_preload(
        [
            "services.learner.process",
            "transformers.models.llama.modeling_llama",
            "torch.distributed.checkpoint",
        ]
    )
    process = context.Process(target=_learner, args=(settings.model_dump_json(), armed), daemon=True)
    process.start()
    return process


async def record(world: World) -> None:
    """Everything that the run will learn from."""
    for index in range(4):
        await world.attempt(demonstration(f"0-sft-{index:07d}"))
    for index in range(8):
        for sample in range(2):
            tokens = [(3 * index + 5 * sample + n) % VOCABULARY for n in range(4 + sample)]
            made = trajectory(
                f"1-rl-{index:07d}",
                sample,
                stage_index=1,
                sequences=(sequence([3, 1, 4], tokens, [-3.0] * len(tokens)),),
            )
            await world.attempt(made, float(sample))


async def life_of_a_run(settings: Settings, deaths: tuple[str, ...], folder: Path) -> list[Any]:
    """Until its last step is told; a learner for every death, and one that survives."""
    world = World(settings)
    process = None
    try:
        await record(world)
        for number, death in enumerate(deaths):
            mark = folder / f"death-{number}"
            process = live(settings, f"{death}:{mark}")
            await asyncio.to_thread(process.join, 180)
            assert process.exitcode == -signal.SIGKILL, (death, process.exitcode)
            assert mark.exists()
        process = live(settings)
        await world.until(lambda seen: LAST in steps(seen), "the last step", 180)
        await world.end()
        await asyncio.to_thread(process.join, 90)
        assert process.exitcode == 0
        return world.seen
    finally:
        if process is not None:
            process.kill()
        await world.close()


def curve(seen: list[Any]) -> dict[int, dict[str, Any]]:
    """What each step says, without times; told twice, it says the same."""
    told: dict[int, dict[str, Any]] = {}
    for message in seen:
        if isinstance(message, Step):
            said = message.model_dump(
                exclude={"run_id", "lineage", "seconds", "created_ms", "effective_throughput"}
            )
            for group in said["groups"]:
                del group["traceparents"]
            assert told.setdefault(message.step, said) == said
    return told


def weights(settings: Settings) -> dict[int, str]:
    folders = CheckpointFolders(ObjectStore(settings.storage_uri), settings.run.name)
    return {step: folders.manifest(step).digests[WEIGHTS] for step in folders.steps()}


@pytest.mark.slow
def test_a_kill_at_every_point_changes_no_bit(
    learner_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    found = []
    for name, deaths in (("quiet", ()), ("stormy", DEATHS)):
        settings = learner_settings(
            stages=STAGES,
            scheduler={"max_lag": 50},
            bus={"partitions": 1},
            learner={"micro_batch_tokens": 16},
            storage={"uri": f"file://{tmp_path / name}"},
            telemetry={"traces": "none"},
        )
        seen = asyncio.run(life_of_a_run(settings, deaths, tmp_path))
        announced = [(m.version, m.weights.sha256) for m in seen if isinstance(m, Policy)]
        made = weights(settings)
        assert set(announced) == set(made.items())  # each version is one set of weights
        found.append((made, curve(seen)))
    (quiet_weights, quiet_curve), (stormy_weights, stormy_curve) = found
    assert sorted(quiet_weights) == list(range(LAST + 1))
    assert stormy_weights == quiet_weights
    assert stormy_curve == quiet_curve


def test_a_point_that_nobody_named_does_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    reached("mid_backward", 3)
    monkeypatch.setenv(VARIABLE, f"mid_backward:3:{tmp_path / 'mark'}")
    reached("mid_backward", 2)
    reached("after_step", 3)
    assert not (tmp_path / "mark").exists()
    (tmp_path / "mark").touch()
    reached("mid_backward", 3)  # it has happened already: the process that was started again goes on
