"""New policies while a full batch is in the middle of its sequences: the pause, what is lost, whether spans are right."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import figure
from benchmarks.serving.rig import BATCH, SAMPLES, Rig
from services.learner.model import PolicyModel, load_policy
from services.learner.publish import announcement, make_canary
from shared.bus.topics import TopicNames
from shared.contracts import Policy, Trajectory, WeightsRef
from shared.settings import LearnerSettings, Settings
from shared.storage import ObjectStore

MAX_TOKENS = 128
NOISE = 0.01
"""Of every weight, relative: log-probabilities of SmolLM2 change by 0.1 in the middle, so that a span shows."""
CLOSE = 2e-3
"""Of log-probabilities in float32, over kernels of different engines."""
PROVEN = 4
"""Trajectories a change whose tokens the learner's model scores: some seconds each on a busy machine."""


@dataclass
class Change:
    """One new policy under a full batch."""

    old: Path
    version: int
    proven_s: float
    silent_s: float
    lost: int
    made: list[Trajectory] = field(repr=False)


def policies(settings: Settings, folder: Path, versions: int) -> Iterator[tuple[Policy, Path]]:
    """Weights that differ everywhere, announced with their true canaries as a learner would; and their files."""
    import torch
    from safetensors.torch import save_file

    policy = learner_model(settings)
    store, numbers = ObjectStore(settings.storage_uri), torch.Generator().manual_seed(7)
    for version in range(versions):
        with torch.no_grad():
            for parameter in policy.model.parameters() if version else ():
                parameter.mul_(1 + NOISE * torch.randn(parameter.shape, generator=numbers))
        file = folder / f"{version}.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in policy.published_tensors().items()}, file)
        ref = store.put_file(f"policies/{version}.safetensors", file)
        weights = WeightsRef(uri=ref.uri, sha256=ref.sha256, size_bytes=ref.size_bytes)
        canary = make_canary(policy, settings.learner.canary_tolerance)
        yield (
            announcement(
                settings,
                step=version,
                stage="rl",
                stage_index=0,
                weights=weights,
                canary=canary,
                checkpoint_uri=ref.uri,
            ),
            file,
        )


def learner_model(settings: Settings) -> PolicyModel:
    return load_policy(settings.model, LearnerSettings(device="cpu"))


async def announce(rig: Rig, policy: Policy) -> None:
    await rig.producer.send(TopicNames(rig.settings.bus.namespace).policies, policy)


async def change(rig: Rig, policy: Policy, old: Path) -> Change:
    """`policy` in place of the one of `old`, when the batch has sampled a quarter of what it will."""
    tasks = [rig.task(policy.version * BATCH + number, MAX_TOKENS) for number in range(BATCH // SAMPLES)]
    await rig.send(tasks)
    wanted = rig.engine.capacity().sampled_tokens + BATCH * MAX_TOKENS // 4
    while rig.engine.capacity().sampled_tokens < wanted and not rig.service.done():
        await asyncio.sleep(0.02)
    vllm: Any = rig.engine.engine
    silent_s = vllm.silent_seconds
    await announce(rig, policy)
    made = await rig.trajectories(len(tasks) * SAMPLES)
    slots = {one.slot for one in made if one.stop_reason != "infrastructure"}
    lost = len(tasks) * SAMPLES - len(slots)
    return Change(old, policy.version, rig.engine.pause_seconds, vllm.silent_seconds - silent_s, lost, made)


def figures(settings: Settings, changes: Sequence[Change]) -> Iterator[dict[str, Any]]:
    """`pause` is how long vLLM stood still; `until_proven_s`, from the hold to the proof, is what the service
    measures: vLLM samples again while it proves, and what it samples counts once the canary holds. A trajectory's
    spans are wrong where it names another policy than the two, or tokens of the old policy's span have not that
    policy's log-probabilities in the learner's own pass; where the change was seen, so many of the first tokens after
    it have others."""
    pauses = [one.silent_s for one in changes]
    yield figure(
        "serving.pause",
        round(statistics.median(pauses), 3),
        "s",
        aim=1.0,
        pauses=[round(p, 3) for p in pauses],
        until_proven_s=[round(one.proven_s, 3) for one in changes],
        places=BATCH,
    )
    made = [trajectory for one in changes for trajectory in one.made]
    lost = sum(one.lost for one in changes)
    yield figure("serving.attempts_lost", lost, "attempts", aim=0, of=len(changes) * BATCH)
    wrong: set[str] = set()
    seen, proven, others = 0, 0, 0
    model, began = learner_model(settings), time.perf_counter()
    for one in changes:
        named = [(trajectory, versions(trajectory)) for trajectory in one.made]
        known = {one.version - 1, one.version}
        wrong |= {t.trajectory_id for t, v in named if not set(v.tolist()) <= known or (np.diff(v) < 0).any()}
        of_two = [(t, v) for t, v in named if set(v.tolist()) == known]
        seen += len(of_two)
        _load(model, one.old)
        for trajectory, named_versions in of_two[:PROVEN]:
            boundary = int((named_versions < one.version).sum())
            difference = _difference(model, trajectory, boundary + 1)
            if difference[:boundary].max() > CLOSE:
                wrong.add(trajectory.trajectory_id)
            others += bool(difference[boundary] > CLOSE)
            proven += 1
    yield figure(
        "serving.spans_wrong",
        len(wrong),
        "trajectories",
        aim=0,
        of=len(made),
        of_two_policies=seen,
        scored_by_the_learner=proven,
        change_seen_at_the_first_token=others,
        scoring_s=round(time.perf_counter() - began, 1),
    )


def versions(trajectory: Trajectory) -> NDArray[np.int32]:
    """int32[n]: the policy of each sampled token."""
    sequence = trajectory.sequences[0]
    found: NDArray[np.int32] = sequence.versions()[sequence.loss_mask.astype(bool)]
    return found


def _load(model: PolicyModel, file: Path) -> None:
    import torch
    from safetensors.torch import load_file

    tensors = load_file(str(file))
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            parameter.copy_(tensors[name])


def _difference(model: PolicyModel, trajectory: Trajectory, count: int) -> NDArray[np.float32]:
    """float32[count]: of the first recorded log-probabilities from those of the model as it is."""
    import torch

    sequence = trajectory.sequences[0]
    sampled = np.flatnonzero(sequence.loss_mask)[:count]
    ids = torch.from_numpy(sequence.token_ids[: sampled[-1] + 1].astype(np.int64))
    found: NDArray[np.float32] = np.abs(model.score(ids).numpy()[sampled] - sequence.logprobs[sampled])
    return found
