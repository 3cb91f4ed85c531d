"""Whether the simulation tells the truth: the same run by real processes, and the ratio that it foretells.

`python -m benchmarks.asynchrony_real [model]`. Scheduler, verifier, learner and two rollout processes over the dev
broker, with `max_lag` 0 and then 4; only the engine sleeps (`sleeping_rollout`). The simulation is given the seconds
that the learner's steps really took in each run. Two runs of one to three minutes each.

Rebalances are eager: a cooperative one evens out the partitions of all topics together, and was seen to give one of
two processes every partition that had work.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bus import dev_broker
from benchmarks.figures import figure, service, show
from benchmarks.simulated.loop import Fleet, SimulatedLoop
from benchmarks.sleeping_rollout import LENGTHS
from shared.bus import admin
from shared.bus.producer import TypedProducer
from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts import Heartbeat, Step
from shared.settings import Settings, parse_settings
from temper.up.resolved import to_toml

WORKERS, ROWS, GROUP_SIZE, LAG = 2, 8, 8, 4
STEP_S = 0.1
"""Of one simulated decode step: the longest answer takes eight seconds, beside which a busy machine's delays are small."""
STEPS = 12
AGREE = 0.15
LIMIT_S = 400.0


def settings_of(bootstrap: str, folder: Path, model: Path, max_lag: int) -> Settings:
    return parse_settings(
        {
            "run": {"name": f"lag-{max_lag}", "folder": str(folder / "runs")},
            "bus": {"bootstrap_servers": bootstrap, "partitions": WORKERS * 4, "rebalance": "eager"},
            "model": {"path": str(model.absolute())},
            "domains": [
                {"name": "arithmetic", "max_tokens": 128, "difficulty": {"digits": 1, "operations": ["+"]}}
            ],
            "stages": [
                {
                    "kind": "rl",
                    "steps": STEPS,
                    "groups_per_step": WORKERS * ROWS // GROUP_SIZE,
                    "group_size": GROUP_SIZE,
                    "learning_rate": 1e-6,
                }
            ],
            "scheduler": {"max_lag": max_lag},
            "evaluation": {"at_start": False, "instances_per_domain": 1},
            "learner": {"threads": 1},
            "rollout": {"adapt_concurrency": False},
            "telemetry": {"traces": "none"},
        }
    )


async def steps_of(settings: Settings, wanted: int) -> list[Step]:
    """The run's steps, once there are `wanted`."""
    producer = TypedProducer(settings, "benchmark")
    reader = LogReader(settings, "learner", [TopicNames(settings.bus.namespace).steps], "earliest", producer)
    found: list[Step] = []
    until = time.monotonic() + LIMIT_S
    try:
        while len(found) < wanted:
            messages = [delivery.message for delivery in await reader.poll(0.2)]
            found += [m for m in messages if isinstance(m, Step) and m.run_id == settings.run.name]
            if time.monotonic() > until:
                raise SystemExit(f"{settings.run.name}: {len(found)} of {wanted} steps in {LIMIT_S:.0f} s")
        return found
    finally:
        await reader.close()
        await producer.close()


def really(folder: Path, bootstrap: str, model: Path, max_lag: int) -> list[Step]:
    settings = settings_of(bootstrap, folder, model, max_lag)
    config = folder / f"lag-{max_lag}.toml"
    config.write_text(to_toml(settings))
    admin.apply(settings)
    with contextlib.ExitStack() as stack:

        def start(name: str) -> None:
            log = folder / f"{name}-{max_lag}.log"
            stack.enter_context(service(name, config, log, OMP_NUM_THREADS="1"))

        for number in range(WORKERS):
            stack.enter_context(_sleeper(config, number))
        start("learner")
        start("verifier")
        # Whoever comes first would take all tasks there are.
        asyncio.run(_shared_out(settings))
        start("scheduler")
        return asyncio.run(steps_of(settings, STEPS))


async def _shared_out(settings: Settings) -> None:
    """Returns when every rollout process has its share of the partitions."""
    reader = LogReader(settings, "learner", [TopicNames(settings.bus.namespace).workers], "earliest")
    shares: dict[str, float] = {}
    until = time.monotonic() + LIMIT_S
    try:
        while len(shares) < WORKERS or min(shares.values()) < 1:
            for delivery in await reader.poll(0.2):
                beat = delivery.message
                if isinstance(beat, Heartbeat) and (beat.run_id, beat.service) == (
                    settings.run.name,
                    "rollout",
                ):
                    shares[beat.worker_id] = beat.gauges.get("partitions", 0)
            if time.monotonic() > until:
                raise SystemExit(f"{settings.run.name}: partitions are {shares} after {LIMIT_S:.0f} s")
    finally:
        await reader.close()


@contextlib.contextmanager
def _sleeper(config: Path, number: int) -> Iterator[None]:
    """A rollout process; that it still runs at the end of the block is proven."""
    arguments = [str(config), f"rollout-{number}", str(STEP_S), str(ROWS)]
    log = config.with_name(f"rollout-{number}.log")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.sleeping_rollout", *arguments], stdout=out, stderr=out
        )
    try:
        yield
        if process.poll() is not None:
            raise SystemExit(f"rollout-{number} ended with {process.returncode}: {log.read_text()[-2000:]}")
    finally:
        process.kill()
        process.wait()


def foretold(max_lag: int, learner_s: float) -> float:
    """Wall seconds a step, of several seeds."""
    fleet = Fleet(WORKERS, ROWS, GROUP_SIZE, lengths=LENGTHS, step_s=STEP_S, learner_s=learner_s)
    return statistics.mean(
        SimulatedLoop(fleet, max_lag, STEPS, seed).run().wall_s / (STEPS - 1) for seed in range(5)
    )


def measure(model: Path) -> Iterator[dict[str, Any]]:
    real, simulated, shares = {}, {}, {}
    tokens: dict[int, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as temporary, dev_broker(Path(temporary)) as bootstrap:
        for lag in (0, LAG):
            steps = really(Path(temporary), bootstrap, model, lag)
            wall = (steps[-1].created_ms - steps[0].created_ms) / 1000
            busy = [
                sum(s for name, s in step.seconds.items() if name not in ("wait", "total")) for step in steps
            ]
            real[lag], shares[lag] = wall / (len(steps) - 1), 1 - sum(busy[1:]) / wall
            simulated[lag] = foretold(lag, statistics.mean(busy[1:]))
            tokens[lag] = dict(sum((Counter(step.tokens) for step in steps), Counter()))
    ratio, told = real[0] / real[LAG], simulated[0] / simulated[LAG]
    yield figure(
        f"asynchrony.real_{WORKERS}_workers_lag_{LAG}",
        round(ratio, 2),
        "times as fast as synchronous",
        simulated=round(told, 2),
        difference=round(told / ratio - 1, 3),
        agree_within=AGREE,
        seconds_a_step={str(lag): round(value, 2) for lag, value in real.items()},
        simulated_seconds_a_step={str(lag): round(value, 2) for lag, value in simulated.items()},
        learner_idle_share={str(lag): round(value, 3) for lag, value in shares.items()},
        tokens={str(lag): value for lag, value in tokens.items()},
        steps=STEPS,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, default=Path("models/tiny"))
    for line in measure(parser.parse_args().model):
        show(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
