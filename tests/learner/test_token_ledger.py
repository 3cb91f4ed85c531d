"""One run in which everything happens to tokens that can: the book of its steps adds up to what was sampled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from learner_builders import reward, sequence, trajectory
from learner_world import World, steps, with_learner

from shared.contracts import Step, Trajectory
from shared.settings import Settings

STAGE = {
    "kind": "rl", "steps": 3, "groups_per_step": 1, "group_size": 2, "learning_rate": 1e-2,
    "objective": {"preset": "grpo", "overrides": {"dynamic_sampling": True}},
}  # fmt: skip


class Sampler:
    """Makes attempts of telling sizes and counts what was sampled."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sampled = 0

    def made(
        self, group: int, sample: int, size: int, version: int, prompt: int = 3, again: int = 1
    ) -> Trajectory:
        self.sampled += size
        name = f"0-rl-{group:07d}"
        tokens = sequence([1] * prompt, [4 + sample] * size, [-3.0] * size, version)
        return trajectory(
            name, sample, name=f"{name}/{sample}/{again}", sequences=(tokens,), final_answer=str(sample),
            version=version, attempt=again,
        )  # fmt: skip

    async def group(
        self, number: int, sizes: tuple[int, int], values: tuple[float, float], version: int
    ) -> None:
        for sample, (size, value) in enumerate(zip(sizes, values, strict=True)):
            await self._world.attempt(self.made(number, sample, size, version), value)

    async def fault(self, made: Trajectory) -> None:
        """Its verifier broke."""
        word = reward(made, None, verdict="infrastructure", reason="it broke")
        slot = word.slot.model_copy(update={"run_id": self._world.settings.run.name})
        await self._world.attempt(made)
        await self._world.producer.send(self._world.names.rewards, word.model_copy(update={"slot": slot}))


def test_every_sampled_token_is_booked_once(learner_settings: Callable[..., Settings]) -> None:
    settings = learner_settings(stages=[STAGE], scheduler={"max_lag": 0}, bus={"partitions": 1})
    unresolved, counts = 7 + 9, []

    async def script(world: World) -> None:
        sampler = Sampler(world)
        await sampler.group(0, (2, 3), (0.0, 1.0), version=0)  # trained
        await world.until(lambda seen: 1 in steps(seen), "the first step")
        await sampler.group(1, (4, 5), (1.0, 1.0), version=1)  # equal rewards
        await sampler.group(2, (6, 7), (0.0, 1.0), version=0)  # one version too old
        await world.attempt(
            sampler.made(3, 0, 8, version=1, prompt=125), 1.0
        )  # 133 tokens, the model reads 128
        await sampler.fault(sampler.made(3, 1, 9, version=1))
        await world.attempt(sampler.made(4, 0, 7, version=1))  # nobody has judged it
        await world.attempt(
            sampler.made(5, 0, 3, version=1, again=2)
        )  # loses against the one whose reward comes first
        await sampler.group(5, (5, 6), (0.0, 1.0), version=1)  # trained
        await world.until(lambda seen: 2 in steps(seen), "the second step")
        await world.attempt(sampler.made(6, 0, 9, version=2), 1.0)  # half of a group
        await asyncio.sleep(0.5)
        counts.append(sampler.sampled)

    world = asyncio.run(with_learner(settings, script))
    told: list[Step] = world.of(Step)
    booked = sum((Counter(step.tokens) for step in told), Counter())
    assert booked == {
        "trained": 2 + 3 + 5 + 6,
        "zero_signal": 4 + 5,
        "stale": 6 + 7,
        "over_length": 8,
        "faulted": 9,
        "duplicate": 3,
    }
    assert counts == [booked.total() + unresolved]
    assert [step.trained_tokens for step in told] == [5, 11]
    assert all(
        step.effective_throughput == step.trained_trajectories / step.seconds["total"] > 0 for step in told
    )
