"""What the rollout service itself costs a turn: templates, tokenization, calls, results, records; no model, no sandbox.

`python -m benchmarks.turns [--quick] [model]`. Episodes run at the same time on one event loop, on an engine that
answers at once; the figure is CPU time of the whole process over turns, so that what else the machine does does not
count. Each turn is a call with its result; each episode ends as the message that would be sent.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import figure, show
from services.rollout import episodes
from services.rollout.chat import ChatCodec
from services.rollout.engines.base import GenerateRequest, Ids
from services.rollout.engines.instant import InstantEngine
from services.rollout.turns.runner import Runner
from services.rollout.turns.tokens import Tokens
from shared.contracts import ChatMessage, DomainRef, Limits, Sampling, Slot, Task, encode
from shared.domains.tools import Bench

EPISODES = 200
TURNS = (4, 16, 64)
LIMIT_MS = 10.0
CALL = '```tool_call\n{{"name": "look_up", "arguments": {{"key": "entry {number}", "lines": 3}}}}\n```'
RESULT = "\n".join(f"line {number} of what was asked for, some words long" for number in range(12))
"""About 600 characters, as a listing or the end of a test's output has."""


class LookUp:
    """A domain with one tool, which answers at once."""

    def tools(self, bench: Bench) -> list[Any]:
        async def look_up(key: str, lines: int = 1) -> str:
            """Returns some lines about a key."""
            return RESULT

        return [look_up]


def task_of(turns: int, samples: int) -> Task:
    return Task(
        run_id="bench",
        group_id="g",
        stage="rl",
        stage_index=0,
        domain=DomainRef(name="look_up", version=1, seed=0),
        workload="agentic",
        priority="normal",
        purpose="train",
        messages=(ChatMessage(role="user", content="Find the entry that is asked for, and say its number."),),
        tools=("look_up",),
        sampling=Sampling(samples=samples, group_size=samples, max_tokens=4096),
        limits=Limits(turns=turns, context_tokens=1 << 20, wall_seconds=3600.0),
    )


def answers(tokens: Tokens) -> list[Ids]:
    end = np.array([tokens.end_id], dtype=np.int32)
    return [np.concatenate([tokens.encode(CALL.format(number=number))[0], end]) for number in range(50)]


async def run(runner: Runner, task: Task) -> list[int]:
    """Bytes of each episode's message."""

    async def one(slot: Slot) -> int:
        end = await runner.attempt(task, slot, slot.sample_index)
        assert (end.stop_reason, end.turns, end.malformed_calls) == ("turns", task.limits.turns, 0)
        signature = episodes.Signature(f"t{slot.sample_index}", "bench", 0)
        return len(encode(episodes.of_turns(task, slot, end, signature)))

    return await asyncio.gather(*(one(slot) for slot in task.slots()))


def measure(model: Path, turns: Sequence[int] = TURNS, count: int = EPISODES) -> Iterator[dict[str, Any]]:
    """One figure a turn count: milliseconds of CPU a turn."""
    codec = ChatCodec.open(str(model))
    tokens = Tokens(codec.tokenizer, codec.stop_ids)
    table = answers(tokens)

    def answer(request: GenerateRequest) -> Ids:
        return table[request.seed % len(table)]

    for number in turns:
        engine = InstantEngine(answer)
        asyncio.run(engine.load_policy(model, 0, None))
        runner = Runner(engine, tokens, domain_of=lambda name: LookUp())
        began, wall = time.process_time(), time.perf_counter()
        sizes = asyncio.run(run(runner, task_of(number, count)))
        cpu, wall = time.process_time() - began, time.perf_counter() - wall
        yield figure(
            f"rollout.turn_overhead_{number}_turns",
            round(1e3 * cpu / (number * count), 3),
            "ms of CPU a turn",
            limit=LIMIT_MS,
            episodes=count,
            turns=number,
            turns_per_wall_second=round(number * count / wall),
            message_kib=round(max(sizes) / 1024),
            model=model.name,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, default=Path("models/tiny"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for line in measure(options.model, TURNS[:2] if options.quick else TURNS):
        show(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
