"""Memory of each service at rest and with ten thousand trajectories queued before it.

`python -m benchmarks.memory`. Back-pressure bounds both to be the same within a tenth. At rest means idle after
work: imports, buffers and the optimizer are there. A queue is made by stopping a service (SIGSTOP) while the ones
before it work, then letting it go on; the figure is the most it then takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bus import dev_broker
from benchmarks.figures import figure, resident_mib, service, show
from services.scheduler.tasks import TaskBuilder
from services.scheduler.training import GroupPlan, group_id
from shared.bus import admin
from shared.bus.producer import TypedProducer
from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.domains.registry import load_domain
from shared.settings import Settings, parse_settings
from temper.up.resolved import to_toml

GROUP_SIZE = 8
SERVICES: dict[str, dict[str, str]] = {
    "learner": {},
    "verifier": {},
    "rollout": {},
    # One batch of its own and no more: the queue comes from here.
    "scheduler": {"TEMPER_SCHEDULER__MAX_LAG": "0"},
}
WARM_GROUPS = 64


def settings_of(bootstrap: str, folder: Path, model: Path) -> Settings:
    return parse_settings(
        {
            "run": {"name": "memory", "folder": str(folder / "runs")},
            "bus": {"bootstrap_servers": bootstrap, "partitions": 2},
            "model": {"path": str(model.absolute())},
            "domains": [{"name": "arithmetic", "max_tokens": 4, "difficulty": {"digits": 3}}],
            "stages": [{"kind": "rl", "steps": 100_000, "groups_per_step": 16, "group_size": GROUP_SIZE}],
            "scheduler": {"group_deadline_s": 86_400.0, "max_lag": 100_000, "stall_s": 86_400.0},
            "rollout": {"engine": "instant"},
        }
    )


async def queue_tasks(settings: Settings, first: int, groups: int) -> None:
    """Tasks of `groups` groups, as the scheduler would send them."""
    declared = settings.domains[0]
    tasks = TaskBuilder(settings, {declared.name: load_domain(declared.name)})
    topic = TopicNames(settings.bus.namespace).tasks(declared.workload, "normal")
    producer = TypedProducer(settings, "benchmark")
    now_ms = int(time.time() * 1000)
    plans = [GroupPlan(group_id(0, "rl", i), 0, i, declared.name, i) for i in range(first, first + groups)]
    await asyncio.gather(*(producer.send(topic, tasks.training(plan, 0, now_ms)) for plan in plans))
    await producer.close()


async def count(settings: Settings, topics: list[str], wanted: int, limit_s: float) -> None:
    """Returns when `wanted` records of these topics are there."""
    reader = LogReader(settings, "learner", topics, "earliest")
    deadline, seen = time.monotonic() + limit_s, 0
    while seen < wanted:
        seen += len(await reader.poll(0.2, 2000))
        if time.monotonic() > deadline:
            raise SystemExit(f"benchmark: {seen} of {wanted} records of {topics} after {limit_s:.0f} s")
    await reader.close()


def peak_mib(pid: int, seconds: float) -> float:
    until, most = time.monotonic() + seconds, 0.0
    while time.monotonic() < until:
        most = max(most, resident_mib(pid))
        time.sleep(0.1)
    return most


def measure(model: Path, trajectories: int = 10_000) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary)
        settings = settings_of(stack.enter_context(dev_broker(folder)), folder, model)
        admin.apply(settings)
        config = folder / "memory.toml"
        config.write_text(to_toml(settings))
        # Its other lag would contradict the run.toml that the first service writes: a folder of its own.
        apart = {"TEMPER_RUN__FOLDER": str(folder / "scheduler")}
        running = {
            name: stack.enter_context(
                service(
                    name,
                    config,
                    folder / f"{name}.log",
                    **environment,
                    **(apart if name == "scheduler" else {}),
                )
            )
            for name, environment in SERVICES.items()
        }
        yield from measure_running(settings, running, trajectories)


def measure_running(
    settings: Settings, running: dict[str, subprocess.Popen[bytes]], trajectories: int
) -> Iterator[dict[str, Any]]:
    names = TopicNames(settings.bus.namespace)
    produced = [names.trajectories("single_turn", "normal")]
    asyncio.run(queue_tasks(settings, 0, WARM_GROUPS))
    asyncio.run(count(settings, [names.rewards], WARM_GROUPS * GROUP_SIZE, 120))
    time.sleep(5)
    rest = {name: peak_mib(process.pid, 1.0) for name, process in running.items()}
    for process in running.values():
        process.send_signal(signal.SIGSTOP)
    groups = trajectories // GROUP_SIZE
    asyncio.run(queue_tasks(settings, WARM_GROUPS, groups))
    everything = (WARM_GROUPS + groups) * GROUP_SIZE
    for name, output in (
        ("rollout", produced),
        ("verifier", [names.rewards]),
        ("learner", []),
        ("scheduler", []),
    ):
        running[name].send_signal(signal.SIGCONT)
        queued = peak_mib(running[name].pid, 8.0)
        if output:
            asyncio.run(count(settings, output, everything, 300))
        about = {
            "at_rest_mib": round(rest[name], 1),
            "queued_mib": round(queued, 1),
            "trajectories": trajectories,
        }
        yield figure(f"memory.{name}", round(queued / rest[name], 3), "queued/rest", **about)


if __name__ == "__main__":
    for line in measure(Path("models/tiny")):
        show(line)
