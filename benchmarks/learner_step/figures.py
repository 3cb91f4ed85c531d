"""The figures: ratios to TRL in tokens/s and in peak memory, and how a step's memory grows with a sequence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import figure
from benchmarks.learner_step import workloads
from benchmarks.learner_step.sides import TRL_PYTHON, Step, alone, alternate, median_of, trl_python
from benchmarks.learner_step.workloads import Workload

LENGTHS = (1024, 2048, 4096, 8192)


def speed(workload: Workload, model: Path, threads: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Tokens/s, ours over TRL's; above 1 is faster. Both count the same tokens: every answer with its prompt."""
    name = f"learner_step.{workload.name}"
    if not trl_python():
        yield not_run(f"{name}.speed")
        return
    steps = alternate(workload, model, threads, repeats)
    ours, theirs = steps["temper"], steps["trl"]
    about: dict[str, Any] = {}
    for what in ("seconds", "cpu_seconds"):
        mine, other = median_of(ours, what), median_of(theirs, what)
        about |= {f"temper_{what}": round(mine, 2), f"trl_{what}": round(other, 2)}
        about[f"ratio_{what}"] = round(other / mine, 2)
    yield figure(
        f"{name}.speed",
        about["ratio_seconds"],
        "× TRL's tokens/s",
        **about,
        completion_tokens_per_s=round(workload.completion_tokens / about["temper_seconds"], 1),
        all_tokens_per_s=round(workload.all_tokens / about["temper_seconds"], 1),
        trl_completion_tokens_per_s=round(workload.completion_tokens / about["trl_seconds"], 1),
        gradient_norms=_norms(ours[0], theirs[0]),
        threads=threads,
        repeats=repeats,
    )


def memory(workload: Workload, model: Path, threads: int) -> Iterator[dict[str, Any]]:
    """Peak of one step, ours over TRL's; below 1 is less."""
    name = f"learner_step.{workload.name}.memory"
    if not trl_python():
        yield not_run(name)
        return
    ours, theirs = (alone("temper", workload, model, threads), alone("trl", workload, model, threads))
    yield figure(
        name,
        round(ours.peak_mib / theirs.peak_mib, 3),
        "× TRL's peak",
        temper_mib=round(ours.peak_mib),
        trl_mib=round(theirs.peak_mib),
        trl_device_batch=workload.device_batch or workload.answers,
        temper_seconds=round(ours.seconds, 1),
        trl_seconds=round(theirs.seconds, 1),
        temper_cpu_seconds=round(ours.cpu_seconds, 1),
        trl_cpu_seconds=round(theirs.cpu_seconds, 1),
        gradient_norms=_norms(ours, theirs),
        threads=threads,
    )


def growth(
    model: Path, threads: int, checkpointing: bool = True, layers: int = 0
) -> Iterator[dict[str, Any]]:
    """Peak of a step on one sequence, above that of a step on 64 tokens: what is there whatever the length (weights,
    gradient, moments) is taken off. Logits of the whole sequence, once, would be `logits_mib`. With few `layers` of
    the model they would be most of what grows, so their absence shows, and the figure is quick."""
    least = alone("temper", workloads.one_sequence(64, checkpointing, layers), model, threads).peak_mib
    for tokens in LENGTHS:
        workload = workloads.one_sequence(tokens, checkpointing, layers)
        taken = alone("temper", workload, model, threads)
        yield figure(
            f"learner_step.peak_{tokens}",
            round(taken.peak_mib - least),
            "MiB above a step on 64 tokens",
            peak_mib=round(taken.peak_mib),
            mib_per_1000_tokens=round(1000 * (taken.peak_mib - least) / tokens, 1),
            logits_mib=round(tokens * 49_152 * 4 / 2**20),
            activation_checkpointing=checkpointing,
            layers=layers or "all",
            seconds=round(taken.seconds, 1),
            threads=threads,
        )


def measure(model: Path, threads: int = os.cpu_count() or 1, repeats: int = 3) -> Iterator[dict[str, Any]]:
    if not (model / "config.json").exists():
        yield not_run("learner_step", f"{model} is not there: make {model}/config.json")
        return
    for workload in (
        workloads.short(),
        workloads.short(kl=0.05),
        workloads.demonstrations(),
        workloads.pairs(),
    ):
        yield from speed(workload, model, threads, repeats)
    yield from speed(workloads.long(), model, threads, 1)
    yield from memory(workloads.long((2048, 2048), name="even"), model, threads)
    yield from memory(workloads.long((2048, 2048), 1, name="even_one_by_one"), model, threads)
    yield from growth(model, threads, checkpointing=False, layers=2)


def not_run(name: str, why: str = "") -> dict[str, Any]:
    why = why or f"no TRL: make bench-trl, or name an interpreter that has it in {TRL_PYTHON}"
    return {"figure": name, "unit": "not run", "value": None, "why": why}


def _norms(ours: Step, theirs: Step) -> list[float]:
    return [round(ours.gradient_norm, 4), round(theirs.gradient_norm, 4)]
