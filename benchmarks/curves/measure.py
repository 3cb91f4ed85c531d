"""The figures: areas and ends of both sides' curves, and their difference in units of noise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.curves.compare import Curves, against, said
from benchmarks.curves.tasks import Plan
from benchmarks.figures import figure
from benchmarks.learner_step.sides import TRL_PYTHON, trl_python

HERE = Path(__file__).parent
PROMPTS, GROUP = 16, 8
MAX_TOKENS = {"bandit": 1, "arithmetic": 4}
RATES = {"bandit": 3e-4, "arithmetic": 5e-4}


def measure(model: Path, seeds: int = 3, steps: int = 80) -> Iterator[dict[str, Any]]:
    """Blocking, in processes of their own: one thread each, one side after the other."""
    from benchmarks.curves.ours import warm_start

    with tempfile.TemporaryDirectory() as folder:
        warm = warm_start(model.absolute(), Path(folder) / "warm")
        for task, start in (("bandit", model.absolute()), ("arithmetic", warm)):
            plans = [
                Plan(task, str(start), seed, steps, PROMPTS, GROUP, MAX_TOKENS[task], RATES[task])
                for seed in range(seeds)
            ]
            yield from _compared(task, plans)


def _compared(task: str, plans: Sequence[Plan]) -> Iterator[dict[str, Any]]:
    sides = {"temper": [sys.executable, "-m", "benchmarks.curves.serve"]}
    python = trl_python()
    if python:
        sides["trl"] = [python, str(HERE / "theirs.py")]
    found = {name: _curves(command, plans) for name, command in sides.items()}
    about = {
        "seeds": len(plans),
        "steps": plans[0].steps,
        "attempts_per_step": PROMPTS * GROUP,
        "learning_rate": plans[0].learning_rate,
    }
    for name, curves in found.items():
        yield figure(
            f"curves.{task}.{name}",
            said(curves.areas)["mean"],
            "mean reward over all steps",
            area=said(curves.areas),
            final=said(curves.finals),
            curve=curves.points(),
            **about,
        )
    if "trl" not in found:
        yield figure(f"curves.{task}.trl", 0, f"not run: {TRL_PYTHON} names no interpreter with TRL")
        return
    ours, theirs = found["temper"], found["trl"]
    area = against(ours.areas, theirs.areas)
    yield figure(
        f"curves.{task}.difference",
        area["difference"],
        "of mean reward, ours less TRL's",
        area=area,
        final=against(ours.finals, theirs.finals),
        **about,
    )


def _curves(command: Sequence[str], plans: Sequence[Plan]) -> Curves:
    asked = "".join(json.dumps(plan.to_dict()) + "\n" for plan in plans)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"benchmark: {command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return Curves(tuple(tuple(json.loads(line)) for line in done.stdout.splitlines() if line))
