"""A real rollout process whose engine sleeps instead of computing: rows, long-tailed lengths, versions by the token.

`python -m benchmarks.sleeping_rollout CONFIG WORKER STEP_SECONDS`, started by `benchmarks.asynchrony_real`. Bus,
service, following and messages are the real ones. An answer is the right number half of the time, followed by blanks.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.long_tail import Lengths
from benchmarks.simulated.rollout import version_runs
from services.rollout.chat import ChatCodec
from services.rollout.engines.base import GenerateRequest, Generation, Ids
from services.rollout.engines.gated import GatedEngine
from services.rollout.engines.instant import InstantEngine
from services.rollout.service import RolloutService
from shared.contracts import Canary
from shared.settings import load_settings

LENGTHS = Lengths(log_mean=2.8, log_deviation=1.5, most=80)
"""The calibrated shape at an eighth of its tokens, which the tiny model's context holds."""


class SleepingEngine(InstantEngine):
    """`rows` answers at a time, each as long as its tokens take."""

    def __init__(self, codec: ChatCodec, rows: int, step_s: float) -> None:
        super().__init__(self._answer)
        self._codec, self._step_s = codec, step_s
        self._rows = asyncio.Semaphore(rows)
        self._loaded: list[float] = []
        self._first = 0
        self._blank = int(codec.encode(" ")[0])

    async def generate(self, request: GenerateRequest) -> Generation:
        await self._served.wait()
        async with self._rows:
            began = time.monotonic()
            ids = self._answer(request)[: request.max_tokens]
            await asyncio.sleep(len(ids) * self._step_s)
        runs = version_runs(self._loaded, began, self._step_s, len(ids))
        self._sampled += len(ids)
        return Generation(
            token_ids=ids,
            logprobs=np.full(len(ids), -1.0, dtype=np.float32),
            versions=tuple((length, self._first + at) for length, at in runs),
            stop_reason="stop",
        )

    async def load_policy(self, weights: Path, version: int, canary: Canary | None) -> None:
        if not self._loaded:
            self._first = version
        self._loaded += [time.monotonic()] * (version - self._first + 1 - len(self._loaded))
        await super().load_policy(weights, version, canary)

    def _answer(self, request: GenerateRequest) -> Ids:
        random = Random(request.seed)
        asked = [int(number) for number in re.findall(r"\d+", self._codec.text(request.prompt_ids))]
        said = sum(asked) + (random.random() < 0.5)
        number = self._codec.encode(str(said))
        blanks = max(0, LENGTHS.draw(random) - len(number) - 1)
        end = min(self._codec.stop_ids)
        return np.array([*number, *([self._blank] * blanks), end], dtype=np.int32)


async def serve(config: str, worker: str, step_s: float, rows: int) -> None:
    settings = load_settings(config)
    codec = ChatCodec.open(settings.model.path)
    engine = GatedEngine(SleepingEngine(codec, rows, step_s), settings.rollout.follow)
    await RolloutService(settings, worker, engine, codec).run(asyncio.Event())


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])))
