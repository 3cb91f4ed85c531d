"""Trajectories a second through all four services: an instant engine, an exact checker, a tiny model.

`python -m benchmarks.loop`. It measures the loop, not a policy: bus, contracts, joins, checkpoints and spans are the
real ones; sampling takes no time and the optimizer step is that of a model of a few hundred thousand parameters.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import TEMPER, figure, show

RUN = """
[run]
name = "loop"
folder = "{folder}"
[model]
path = "{model}"
[[domains]]
name = "arithmetic"
max_tokens = 4
difficulty = {{ digits = 1, operations = ["+"] }}
[[stages]]
kind = "rl"
steps = {steps}
groups_per_step = 64
group_size = 8
learning_rate = 1e-5
[evaluation]
at_start = false
instances_per_domain = 1
[rollout]
engine = "instant"
concurrency = 64
[verifier]
concurrency = 64
[learner]
max_buffered_groups = 256
micro_batch_tokens = 16384
"""


def measure(model: Path, steps: int = 12) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = folder / "loop.toml"
        config.write_text(RUN.format(folder=folder / "runs", model=model.absolute(), steps=steps))
        subprocess.run([*TEMPER, "up", str(config)], check=True, capture_output=True)
        summary = json.loads((folder / "runs" / "loop" / "summary.json").read_text())
    stage = summary["stages"][0]
    slots = sum(stage["slots"]["by_fate"].values())
    about = {"steps": steps, "trajectories": slots, "engine": "instant", "checker": "integer"}
    yield figure("loop.trajectories", round(slots / stage["wall_seconds"], 1), "trajectories/s", **about)


if __name__ == "__main__":
    for line in measure(Path("models/tiny")):
        show(line)
