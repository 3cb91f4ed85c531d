"""Tokens are told while they are sampled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.rollout.engines.base import GenerateRequest
from services.rollout.engines.decoder import Decoder
from services.rollout.engines.instant import InstantEngine
from services.rollout.engines.listening import generate
from services.rollout.engines.transformers import TransformersEngine


def request(**changes: Any) -> GenerateRequest:
    values = {"prompt_ids": np.arange(3, 9, dtype=np.int32), "max_tokens": 30, "stop_ids": frozenset({2})}
    return GenerateRequest("r", **(values | changes))


def test_each_token_is_told_once_and_early(tiny_model: Any, tiny_folder: Path) -> None:
    engine = TransformersEngine(Decoder(tiny_model, 4), max_batch=4, max_batch_tokens=1024)

    async def run() -> None:
        await engine.load_policy(tiny_folder / "model.safetensors", 1, None)
        heard: list[int] = []
        task = asyncio.create_task(generate(engine, request(seed=4), heard.append))
        while not heard:
            await asyncio.sleep(0)
        assert not task.done()
        made = await task
        assert heard == made.token_ids.tolist()
        # Nobody is told of a request that was dropped.
        late: list[int] = []
        dropped = asyncio.create_task(
            generate(engine, request(max_tokens=400, stop_ids=frozenset()), late.append)
        )
        while not late:
            await asyncio.sleep(0)
        dropped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dropped
        count = len(late)
        await asyncio.sleep(0.05)
        assert len(late) == count

    try:
        asyncio.run(run())
    finally:
        engine.close()


def test_an_engine_that_keeps_them_back_tells_them_at_its_end(tiny_folder: Path) -> None:
    engine = InstantEngine.fixed(np.array([5, 6, 2], dtype=np.int32))

    async def run() -> None:
        await engine.load_policy(tiny_folder, 1, None)
        heard: list[int] = []
        await generate(engine, request(), heard.append)
        assert heard == [5, 6, 2]

    asyncio.run(run())
