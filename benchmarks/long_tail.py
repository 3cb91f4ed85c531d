"""How long answers are: log-normal lengths, calibrated on this project's engine.

`python -m benchmarks.long_tail [model]` measures: temperature 1, everyday prompts, 32 rows at
once. It prints the mean and the deviation of the logarithm of the lengths, and seconds a decode step. The constants
below are what it printed for SmolLM2-135M-Instruct on two contended cores; the simulation scales with the step, so that
only the shape of the lengths matters for its ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.figures import figure, show

PROMPTS = (
    "What is 7 plus 5? Answer with the number only.",
    "Name the capital of France.",
    "Is 91 a prime number? Explain briefly.",
    "Write a short poem about rain.",
    "A train leaves at 9:40 and arrives at 11:05. How long does it take? Think step by step.",
    "Write a Python function that reverses a list, and explain it.",
    "Explain to a child why the sky is blue.",
    "List five things that one needs for a picnic, with a reason for each.",
)
SAMPLES = 8
MOST = 640
"""Tokens of an answer at most."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of an answer: exp(N(log_mean, log_deviation)), cut to 1 … most."""

    log_mean: float
    log_deviation: float
    most: int

    def draw(self, random: Random) -> int:
        return max(1, min(self.most, round(random.lognormvariate(self.log_mean, self.log_deviation))))

    def mean(self, draws: int = 20_000) -> float:
        random = Random(0)
        return sum(self.draw(random) for _ in range(draws)) / draws


CALIBRATED = Lengths(log_mean=4.9, log_deviation=1.5, most=640)
STEP_SECONDS = 0.287
"""Of one decode step."""
LONGER = Lengths(log_mean=4.9, log_deviation=1.0, most=4096)
"""A purer tail, as of models that think at length: the longest of 64 is about seven times the mean."""


async def sample(model: Path, samples: int) -> tuple[list[int], float]:
    """(lengths, seconds a decode step)."""
    from services.rollout.chat import ChatCodec
    from services.rollout.engines.base import GenerateRequest
    from services.rollout.engines.transformers import TransformersEngine
    from shared.contracts import ChatMessage
    from shared.settings import parse_settings

    settings = parse_settings(
        {
            "run": {"name": "long-tail"},
            "model": {"path": str(model)},
            "domains": [{"name": "arithmetic"}],
            "stages": [{"kind": "rl", "steps": 1}],
            "rollout": {"max_batch": 32, "max_batch_tokens": 32 * 1024},
        }
    )
    codec = ChatCodec.open(str(model))
    engine = TransformersEngine.open(settings)
    try:
        await engine.load_policy(model / "model.safetensors", 0, None)
        began = time.perf_counter()
        made = await asyncio.gather(
            *(
                engine.generate(
                    GenerateRequest(
                        request_id=f"{number}/{index}",
                        prompt_ids=codec.prompt((ChatMessage(role="user", content=text),)).ids,
                        max_tokens=MOST,
                        stop_ids=codec.stop_ids,
                        seed=number * 1000 + index,
                    )
                )
                for index in range(samples)
                for number, text in enumerate(PROMPTS)
            )
        )
        seconds = time.perf_counter() - began
        return [len(one.token_ids) for one in made], seconds / engine.capacity().decode_steps
    finally:
        engine.close()


def measure(model: Path, samples: int = SAMPLES) -> Iterator[dict[str, Any]]:
    lengths, step = asyncio.run(sample(model, samples))
    logs = [math.log(length) for length in lengths]
    mean = sum(logs) / len(logs)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in logs) / (len(logs) - 1))
    about = {"model": model.name, "answers": len(lengths), "cut_at": MOST}
    yield figure("long_tail.log_mean", round(mean, 2), "ln tokens", **about)
    yield figure("long_tail.log_deviation", round(deviation, 2), "ln tokens", **about)
    ordered = sorted(lengths)
    yield figure(
        "long_tail.longest_over_median", round(ordered[-1] / ordered[len(ordered) // 2], 1), "ratio",
        cut_share=round(sum(n >= MOST for n in lengths) / len(lengths), 3), **about,
    )  # fmt: skip
    yield figure("long_tail.decode_step", round(step, 4), "s", **about)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, default=Path("models/smollm2"))
    for line in measure(parser.parse_args().model):
        show(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
