"""One turn of the policy.

Invariant: the random numbers of a turn are a function of the attempt's seed and the turn's number alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from services.rollout.engines.base import Engine, GenerateRequest, Generation, Ids
from services.rollout.engines.cut import Cut
from services.rollout.engines.listening import Heard, generate


class Speaks(Protocol):
    """Who takes the turns of an attempt."""

    async def sample(self, context: Ids, max_tokens: int, turn: int, what: str = "") -> Generation:
        """`what`: beside the turn of this number. Raises `GenerationFault`."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """How the turns of one attempt are sampled. `exact`: see `GenerateRequest`. `heard`: told of tokens as they come."""

    engine: Engine
    request_id: str
    stop_ids: frozenset[int]
    temperature: float
    top_p: float
    seed: int
    exact: bool = True
    heard: Heard | None = None
    cut: Cut | None = None
    """Of the attempt's turns; a summary is not cut."""

    async def sample(self, context: Ids, max_tokens: int, turn: int, what: str = "") -> Generation:
        """`what`: beside the turn of this number. Raises `GenerationFault`."""
        request = GenerateRequest(
            request_id=f"{self.request_id}/{turn}{what}",
            prompt_ids=context,
            max_tokens=max_tokens,
            stop_ids=self.stop_ids,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=turn_seed(self.seed, turn, what),
            episode=self.request_id,
            exact=self.exact,
            cut=None if what else self.cut,
        )
        if self.heard is None:
            return await self.engine.generate(request)
        return await generate(self.engine, request, self.heard)


def turn_seed(seed: int, turn: int, what: str = "") -> int:
    """64 bits of sha256; the first turn has the attempt's own, as a single answer would."""
    if turn == 0 and not what:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{turn}{what}".encode()).digest()[:8], "little")
