"""What the endpoint for agent programs costs a turn, beside the same turn asked for in this process.

`python -m benchmarks.agent [model]`. Histories grow by one answer and one message a turn, as an agent's do, on an engine
that answers at once; no model, no sandbox. Client and server share one event loop and one process, so the figure is of
both; the two sides are measured in turns, and their ratio is what a busy machine leaves true.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import figure, show
from services.rollout.agent.answers import Heading, completion
from services.rollout.agent.asked import read_request
from services.rollout.agent.desk import Desk
from services.rollout.agent.endpoint import Endpoint
from services.rollout.chat import ChatCodec
from services.rollout.engines.http import call
from services.rollout.engines.instant import InstantEngine
from services.rollout.turns.budgets import Budgets
from services.rollout.turns.sampling import Sampler
from services.rollout.turns.tokens import Tokens
from shared.contracts import Sampling

TURNS, ROUNDS = 32, 8
SAMPLING = Sampling(max_tokens=4096)
SAID = "I look at the next file, and say what is in it: nothing that was asked for, so I go on."
RESULT = "\n".join(f"line {number} of what was asked for, some words long" for number in range(12))
Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def measure(model: Path, turns: int = TURNS, rounds: int = ROUNDS) -> Iterator[dict[str, Any]]:
    """CPU milliseconds a turn over HTTP, and how many times that of a turn without it is."""
    codec = ChatCodec.open(str(model))
    tokens = Tokens(codec.tokenizer, codec.stop_ids)
    with_http, without = asyncio.run(_both(tokens, model, turns, rounds))
    yield figure(
        "rollout.agent_turn",
        round(1e3 * min(with_http) / turns, 3),
        "ms of CPU a turn",
        times_without_http=round(min(with_http) / min(without), 2),
        turns=turns,
        rounds=rounds,
        model=model.name,
    )


async def _both(tokens: Tokens, model: Path, turns: int, rounds: int) -> tuple[list[float], list[float]]:
    ids = np.concatenate([tokens.encode(SAID)[0], [tokens.end_id]]).astype(np.int32)
    engine = InstantEngine.fixed(ids)
    await engine.load_policy(model, 0, None)
    sampler = Sampler(engine, "bench", tokens.stop_ids, 1.0, 1.0, 0)
    budgets = Budgets(turns, 4096, 1 << 30, engine.longest, turns, 3600.0)
    endpoint = Endpoint()
    await endpoint.start()
    sides: tuple[list[float], list[float]] = ([], [])
    try:
        for _ in range(rounds):
            for http, side in zip((True, False), sides, strict=True):
                desk = Desk(tokens, budgets, SAMPLING, lambda adapter: sampler)
                key = endpoint.opened(desk)
                began = time.process_time()
                await _history(_over_http(endpoint, key) if http else _direct(desk), turns)
                side.append(time.process_time() - began)
                assert desk.turns == turns
                assert len(desk.sequences()) == 1
                await endpoint.closed(key)
    finally:
        await endpoint.close()
    return sides


async def _history(ask: Ask, turns: int) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find what is asked for."}]
    for _ in range(turns):
        answer = await ask({"model": "m", "messages": messages})
        messages += [answer["choices"][0]["message"], {"role": "user", "content": RESULT}]


def _over_http(endpoint: Endpoint, key: str) -> Ask:
    url = f"http://{endpoint.address}/v1/chat/completions"

    async def ask(body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = await call("POST", url, body, key)
        return answer

    return ask


def _direct(desk: Desk) -> Ask:
    async def ask(body: dict[str, Any]) -> dict[str, Any]:
        asked = read_request(json.dumps(body).encode(), SAMPLING, strict=True)
        return completion(Heading("b", "m", 0), await desk.complete(asked))

    return ask


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, default=Path("models/tiny"))
    for line in measure(parser.parse_args().model):
        show(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
