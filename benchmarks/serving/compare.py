"""Tokens a second: the service over bare vLLM."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from benchmarks.figures import figure
from benchmarks.serving.rig import BATCH, SAMPLES, Rig
from services.rollout.seeds import sample_seed
from shared.contracts import Task

Side = Callable[[Rig, Sequence[Task]], Awaitable[int]]
MAX_TOKENS = 64
TASKS = BATCH // SAMPLES


async def compare(rig: Rig, rounds: int) -> dict[str, Any]:
    """The sides in turns on the same prompts; the first round warms them up."""
    sides: dict[str, Side] = {
        "bare": bare,
        "bare_with_logprobs": bare_with_logprobs,
        "service": through_the_service,
    }
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for round_ in range(rounds + 1):
        batch = [rig.task(round_ * TASKS + number, MAX_TOKENS) for number in range(TASKS)]
        for name in sorted(taken, reverse=bool(round_ % 2)):
            before, began = rig.cpu_seconds(), time.perf_counter()
            tokens = await sides[name](rig, batch)
            seconds, after = time.perf_counter() - began, rig.cpu_seconds()
            cpu = {f"{part}_cpu": (after[part] - before[part]) / tokens for part in after}
            if round_:
                taken[name].append({"rate": tokens / seconds, **cpu})
    ratios, exact = ([_ratio(taken, name, n) for n in range(rounds)] for name in list(sides)[:2])
    return figure(
        "serving.tokens_to_bare_vllm",
        round(statistics.median(ratios), 3),
        "of bare vLLM's tokens/s",
        aim=0.95,
        ratios=[round(ratio, 3) for ratio in ratios],
        to_bare_with_logprobs=round(statistics.median(exact), 3),
        ratios_with_logprobs=[round(ratio, 3) for ratio in exact],
        **{f"{name}_tokens_per_s": round(_median(rows, "rate"), 1) for name, rows in taken.items()},
        **{
            f"{name}_{part}_ms_per_token": round(_median(rows, part) * 1000, 3)
            for name, rows in taken.items()
            for part in ("engine_cpu", "here_cpu")
        },
        requests=TASKS * SAMPLES,
        places=BATCH,
        max_tokens=MAX_TOKENS,
    )


async def through_the_service(rig: Rig, tasks: Sequence[Task]) -> int:
    """Tokens sampled, from the first task sent to the last trajectory read."""
    await rig.send(tasks)
    made = await rig.trajectories(len(tasks) * SAMPLES)
    if len(made) < len(tasks) * SAMPLES:
        raise SystemExit(f"benchmark: {len(made)} trajectories of {len(tasks) * SAMPLES} came")
    return sum(one.sampled_tokens() for one in made)


async def bare_with_logprobs(rig: Rig, tasks: Sequence[Task]) -> int:
    """As `bare`, with what every trainer needs: the log-probability of each sampled token."""
    return await bare(rig, tasks, logprobs=0)


async def bare(rig: Rig, tasks: Sequence[Task], logprobs: int | None = None) -> int:
    """Tokens sampled by AsyncLLM alone, with the seeds that the service would give."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    async def one(number: int, task: Task) -> int:
        parameters = SamplingParams(
            temperature=1.0,
            max_tokens=task.sampling.max_tokens,
            stop_token_ids=sorted(rig.codec.stop_ids),
            ignore_eos=True,
            detokenize=False,
            logprobs=logprobs,
            seed=sample_seed(rig.settings.run.seed, task.group_id, number, task.attempt, 0) % (1 << 63),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = {
            "prompt_token_ids": rig.codec.prompt(task.messages).ids.tolist(),
            "cache_salt": f"bare {logprobs}",
        }
        count = 0
        async for output in rig.llm.generate(prompt, parameters, f"bare {logprobs} {task.group_id} {number}"):
            count = len(output.outputs[0].token_ids)
        return count

    return sum(await asyncio.gather(*(one(number, task) for task in tasks for number in range(SAMPLES))))


def _ratio(taken: dict[str, list[dict[str, float]]], other: str, round_: int) -> float:
    return taken["service"][round_]["rate"] / taken[other][round_]["rate"]


def _median(rows: Sequence[dict[str, float]], name: str) -> float:
    return statistics.median(row[name] for row in rows)
