"""A pair of a data set becomes two trajectories: the better answer as sample 0, the worse as sample 1."""

from __future__ import annotations

import asyncio
from typing import Any

from shared.contracts import ChatMessage
from shared.settings import Settings
from tests.rollout.parts import make_task
from tests.rollout.test_service import serving, settings  # noqa: F401  (a fixture)


def test_a_pair_is_tokenized_and_nothing_is_sampled(settings: Settings) -> None:  # noqa: F811
    answer, worse = (ChatMessage(role="assistant", content=text) for text in ("4", "51"))
    task = make_task(settings, 3, samples=2, stage="preference", demonstration=(answer,), rejected=(worse,))

    async def body() -> list[Any]:
        async with serving(settings) as (bench, _, _):
            await bench.schedule(task)
            return await bench.trajectories(2)

    made = {trajectory.slot.sample_index: trajectory for trajectory in asyncio.run(body())}
    assert [made[index].final_answer for index in (0, 1)] == ["4", "51"]
    assert {trajectory.sampling_mode for trajectory in made.values()} == {"demonstration"}
    (better,), (rejected,) = (made[index].sequences for index in (0, 1))
    assert [int(sequence.loss_mask.sum()) for sequence in (better, rejected)] == [2, 3]
    prompt = better.token_ids.size - 2
    assert better.token_ids[:prompt].tolist() == rejected.token_ids[:prompt].tolist()
