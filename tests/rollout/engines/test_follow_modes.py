"""The modes of `rollout.follow` on every engine: which turns of a running episode a new policy takes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from services.rollout.engines.base import Generation
from services.rollout.engines.gate import Mode
from services.rollout.engines.gated import GatedEngine
from tests.rollout.engines.little_model import scaled
from tests.rollout.engines.subjects import Subject, long_request, sampled

TURNS, TOOL_S = 3, 0.02


def versions(made: Generation) -> list[int]:
    return [version for _, version in made.versions]


async def episode(engine: GatedEngine, name: str, number: int) -> list[list[int]]:
    """Versions of each of its turns; between two turns a tool runs."""
    turns = []
    async with engine.episode(name):
        for turn in range(TURNS):
            asked = long_request(10 * number + turn, max_tokens=60, episode=name)
            turns.append(versions(await engine.generate(asked)))
            await asyncio.sleep(TOOL_S)
    return turns


@pytest.mark.parametrize("mode", ["in_flight", "between_turns", "drain"])
def test_a_running_episode_meets_a_new_policy_where_its_mode_says(
    subject: Subject, tmp_path: Path, mode: Mode
) -> None:
    async def run() -> tuple[int, int, list[list[int]], list[list[int]], bool]:
        old, engine = await subject.serve(), GatedEngine(subject.engine, mode)
        running = asyncio.create_task(episode(engine, "a", 1))
        if subject.name == "instant":
            while not engine.capacity().running:
                await asyncio.sleep(0)
        else:
            await sampled(engine, 1 if subject.name == "openai" else 5)
        new = subject.next_version()
        weights = scaled(subject.weights, tmp_path / "new.safetensors", 1.1)
        loading = asyncio.create_task(engine.load_policy(weights, new, None))
        await asyncio.sleep(0)
        late = asyncio.create_task(episode(engine, "b", 2))
        await loading
        ended = running.done()
        return old, new, await running, await late, ended

    old, new, turns, late, ended = subject.run(run())
    assert len(turns) == len(late) == TURNS and {v for turn in (*turns, *late) for v in turn} <= {old, new}
    flat = [version for turn in turns for version in turn]
    assert flat == sorted(flat), "a policy never goes back"
    if mode == "drain":
        assert turns == [[old]] * TURNS and ended, "it waits for the episode's end"
        assert late == [[new]] * TURNS, "and what came after it waits for the policy"
        return
    assert not ended and turns[-1] == [new] and late[-1] == [new], "nobody waits for the episode's end"
    if mode == "between_turns":
        assert all(len(turn) == 1 for turn in turns), "every turn has one policy"
        assert turns[0] == [old] and late == [[new]] * TURNS
    elif subject.name in ("transformers", "vllm"):
        assert turns[0] == [old, new], "its spans say so"
