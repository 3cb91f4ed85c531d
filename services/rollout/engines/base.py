"""What an engine is to the rest of the service.

Invariant: a generation holds as many log-probabilities and versions as tokens; every log-probability is the natural
logarithm of the sampled token's probability under the unscaled, untruncated distribution of the weights that sampled
it, whatever temperature or truncation chose the token. Every version in it was attested.

One suite (`tests/rollout/engines/test_engine_contract.py`) runs on every implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from services.rollout.engines.cut import Cut
from shared.contracts import Canary
from shared.errors import AttestationError, DependencyError, TemperError

Ids = NDArray[np.int32]
Logprobs = NDArray[np.float32]


class GenerationFault(TemperError):
    """The engine cannot make this generation; a fault of ours, never the policy's."""


class RequestTooLongError(GenerationFault):
    """Prompt and completion together pass what the engine or the model can hold."""


class InexactEngineError(GenerationFault):
    """Training was asked of an engine that does not return ids and log-probabilities as they were sampled."""


class EngineDiedError(DependencyError):
    """The engine is gone for good; the process ends, and its tasks are delivered to others."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One sequence to sample.

    prompt_ids int32[p], p ≥ 1; `temperature` 0 is greedy; `stop_ids` end a sequence and belong to it; equal `seed`
    and equal weights give equal tokens, up to float noise, whatever else is in the batch.
    """

    request_id: str
    prompt_ids: Ids
    max_tokens: int
    stop_ids: frozenset[int]
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    episode: str = ""
    """Which episode it is a turn of; requests without one are episodes of one turn."""
    exact: bool = True
    """False where only the text counts (evaluation): an engine that is not `exact` serves nothing else."""
    heard: Callable[[int], None] | None = None
    """Told of every token as it is sampled, from any thread; it must be quick and raise nothing. An engine that gives
    its tokens only at the end may leave it alone: see `services.rollout.engines.listening`."""

    cut: Cut | None = None
    """Asked while it runs: the generation is what there is then, with stop_reason `cut`. See `engines.cut`."""

    @property
    def tokens(self) -> int:
        """Key-value slots that it may come to need."""
        return len(self.prompt_ids) + self.max_tokens


@dataclass(frozen=True, slots=True)
class EngineTimings:
    """Wall seconds of one request: waiting for room, prompt, sampling."""

    queued: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


@dataclass(frozen=True, slots=True)
class Generation:
    """token_ids int32[n], logprobs float32[n], versions: runs of (length, version), lengths sum to n ≥ 1 (0: cut before the first)."""

    token_ids: Ids
    logprobs: Logprobs
    versions: tuple[tuple[int, int], ...]
    stop_reason: Literal["stop", "length", "cut"]
    timings: EngineTimings = field(default_factory=EngineTimings)


NOTHING = Generation(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32), (), "cut")
"""Of a request that was cut and left nothing."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine holds now, and what it did since it started."""

    max_batch: int
    running: int
    waiting: int
    version: int
    sampled_tokens: int
    decode_steps: int
    kv_use: float = 0.0
    """Share of the key-value room that running requests hold, or have reserved; of `max_batch` where no room is known."""
    preempted: int = 0
    """Requests that were pushed out by others and had to be read again."""


class Engine(Protocol):
    """An engine starts without a policy (version -1) and holds every request until it has one."""

    @property
    def name(self) -> str:
        """As in settings `rollout.engine`."""

    @property
    def exact(self) -> bool:
        """It returns ids and log-probabilities as they were sampled; otherwise it is for evaluation only."""

    @property
    def longest(self) -> int:
        """Tokens that one request may have, prompt and completion together."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Raises `GenerationFault` (`InexactEngineError`, `RequestTooLongError`); cancelling the call frees its place in the batch.

        Equal seeds give equal text only while one policy serves: a request that lives through a load goes on with the
        new weights.
        """

    async def pause(self) -> None:
        """Once it returns no token is sampled until `resume`; what runs keeps its place and its keys. Idempotent.

        An engine that cannot stop inside an answer (`openai`) holds new requests and waits for those that run.
        """

    async def resume(self) -> None:
        """What was held goes on, if the policy is attested. Idempotent."""

    async def load_policy(self, weights: Path, version: int, canary: Canary | None) -> None:
        """Swaps the weights between two decode steps, paused or not; running sequences go on with the new.

        Keys of earlier policies are never read by later requests (a running one keeps its own). Raises
        `AttestationError` where the file does not fit the model or the canary is not reproduced. After it the engine
        samples nothing until a load succeeds.
        """

    async def score(self, token_ids: Ids, lengths: Ids) -> Logprobs:
        """float32[sum(lengths)]: log p of each token given the earlier ones of its sequence; 0 for each first."""

    def capacity(self) -> EngineLoad:
        """Cheap; from any thread."""

    async def watch(self) -> None:
        """Waits for the engine's death. Raises `EngineDiedError`; returns after `close`."""

    def close(self) -> None:
        """Fails what still runs with `GenerationFault` and gives the memory back; idempotent."""


def check_canary(canary: Canary, got: Logprobs, version: int) -> float:
    """Maximum absolute difference. Raises `AttestationError` where it passes the tolerance or is no number."""
    if not got.size:
        return 0.0
    difference = np.abs(got.astype(np.float64) - canary.logprobs.astype(np.float64))
    worst = float(np.max(difference))
    if not worst <= canary.tolerance:  # also true for NaN
        place = int(np.argmax(np.where(np.isnan(difference), np.inf, difference)))
        raise AttestationError(
            f"policy {version}: canary token {place} has log-probability {got[place]:.6f} here, "
            f"{canary.logprobs[place]:.6f} announced (tolerance {canary.tolerance:g}); "
            "the weights, the dtype or the model's code differ from the learner's"
        )
    return worst


def runs_of(versions: list[int]) -> tuple[tuple[int, int], ...]:
    """[5, 5, 6] → ((2, 5), (1, 6))."""
    runs: list[tuple[int, int]] = []
    for version in versions:
        if runs and runs[-1][1] == version:
            runs[-1] = (runs[-1][0] + 1, version)
        else:
            runs.append((1, version))
    return tuple(runs)


def draws(seed: int, count: int) -> NDArray[np.float64]:
    """The `count` uniform numbers in [0, 1) that a request's tokens are drawn with: a function of its seed alone.

    Philox is counter based: streams of different keys are independent, and making one is cheap.
    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """
    generator: Any = np.random.Generator(np.random.Philox(key=seed % (1 << 128)))
    drawn: NDArray[np.float64] = generator.random(count)
    return drawn
