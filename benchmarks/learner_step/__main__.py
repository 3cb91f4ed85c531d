"""`python -m benchmarks.learner_step [figure…]`: all figures, or those of the named workloads (short, short_kl, sft,
dpo, long, even, even_one_by_one, growth, growth_kept, growth_of_two_layers)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import show
from benchmarks.learner_step import workloads
from benchmarks.learner_step.figures import growth, measure, memory, speed

EVEN = (2048, 2048)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", nargs="*")
    parser.add_argument("--model", type=Path, default=Path("models/smollm2"))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    model, threads, repeats = asked.model, asked.threads, asked.repeats
    known: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "short": lambda: speed(workloads.short(), model, threads, repeats),
        "short_kl": lambda: speed(workloads.short(kl=0.05), model, threads, repeats),
        "sft": lambda: speed(workloads.demonstrations(), model, threads, repeats),
        "dpo": lambda: speed(workloads.pairs(), model, threads, repeats),
        "long": lambda: speed(workloads.long(), model, threads, repeats),
        "even": lambda: memory(workloads.long(EVEN, name="even"), model, threads),
        "even_one_by_one": lambda: memory(workloads.long(EVEN, 1, name="even_one_by_one"), model, threads),
        "growth": lambda: growth(model, threads),
        "growth_kept": lambda: growth(model, threads, checkpointing=False),
        "growth_of_two_layers": lambda: growth(model, threads, checkpointing=False, layers=2),
    }
    for unknown in set(asked.figures) - known.keys():
        parser.error(f"{unknown!r} is none of {', '.join(known)}")
    for line in measure(model, threads, repeats) if not asked.figures else ():
        show(line)
    for name in asked.figures:
        for line in known[name]():
            show(line)


if __name__ == "__main__":
    main()
