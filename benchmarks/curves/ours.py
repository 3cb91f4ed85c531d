"""Our side: the learner's own parts around the `transformers` engine, in one process.

Invariant: what is trained on went through the intake as it does in a run, with log-probabilities of the engine and
the rewards of `tasks`; every step is sampled from the weights of the one before (no staleness).
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file
from transformers import AutoTokenizer

from benchmarks.curves import tasks
from benchmarks.curves.tasks import Plan
from services.learner.intake.join import Arrival
from services.learner.intake.offsets import Place
from services.learner.model import PolicyModel, load_policy
from services.learner.trainer import Trainer
from services.rollout.engines.base import GenerateRequest, Generation
from services.rollout.engines.decoder import Decoder, load_model
from services.rollout.engines.transformers import TransformersEngine
from shared.contracts import (
    DomainRef,
    Reward,
    RoleSpan,
    Sampling,
    Slot,
    Trajectory,
    VersionSpan,
)
from shared.contracts import Sequence as TokenSequence
from shared.settings import Settings, parse_settings
from shared.storage import ObjectStore

RUN = "curves"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
WARM_STEPS, WARM_DEMONSTRATIONS, WARM_RATE = 28, 64, 3e-3
"""Leaves the tiny model right in about a fifth of one-digit sums: something to find, and something to learn."""


def curve(plan: Plan) -> list[float]:
    """The mean reward of each step."""
    with _trainer(plan, "rl") as (trainer, policy, folder):
        return asyncio.run(_learn(plan, trainer, policy, folder / "served.safetensors"))


def warm_start(model: Path, folder: Path) -> Path:
    """Imitates a few right sums from `model`; a Hugging Face folder that both sides begin with."""
    plan = Plan("arithmetic", str(model), 0, WARM_STEPS, WARM_DEMONSTRATIONS, 1, 4, WARM_RATE)
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    with _trainer(plan, "sft") as (trainer, policy, _):
        for number, question in enumerate(tasks.questions(plan)):
            made = _demonstration(tokenizer, number, question)
            trainer.intake.trajectory(Arrival(made, Place("trajectories", 0, number)))
        for _ in range(plan.steps):
            _step(trainer)
        policy.model.save_pretrained(str(folder))
    for name in TOKENIZER_FILES:
        shutil.copy(model / name, folder / name)
    return folder


@contextmanager
def _trainer(plan: Plan, kind: str) -> Iterator[tuple[Trainer, PolicyModel, Path]]:
    with tempfile.TemporaryDirectory() as made:
        settings = _settings(plan, kind, Path(made))
        policy = load_policy(settings.model, settings.learner)
        trainer = Trainer(settings, ObjectStore(settings.storage_uri), policy)
        trainer.open()
        yield trainer, policy, Path(made)


def _settings(plan: Plan, kind: str, folder: Path) -> Settings:
    stage: dict[str, Any] = {
        "kind": kind,
        "steps": plan.steps,
        "groups_per_step": plan.prompts_per_step,
        "learning_rate": plan.learning_rate,
    }
    if kind == "rl":
        overrides = {"clip_low": plan.epsilon, "clip_high": plan.epsilon}
        stage |= {"group_size": plan.group_size, "objective": {"preset": "grpo", "overrides": overrides}}
    return parse_settings(
        {
            "run": {"name": RUN, "folder": str(folder / "runs"), "seed": plan.seed},
            "storage": {"uri": f"file://{folder / 'objects'}"},
            "model": {"path": plan.model},
            "domains": [{"name": "arithmetic"}],
            "stages": [stage],
            "scheduler": {"max_lag": 0},
            "learner": {"max_gradient_norm": plan.max_gradient_norm, "device": "cpu"},
        }
    )


async def _learn(plan: Plan, trainer: Trainer, policy: PolicyModel, served: Path) -> list[float]:
    tokenizer = AutoTokenizer.from_pretrained(plan.model)
    places, draw = itertools.count(), random.Random(plan.seed)
    asked = iter(tasks.questions(plan))
    batch = plan.prompts_per_step * plan.group_size
    engine = TransformersEngine(Decoder(load_model(plan.model, "float32", "cpu"), batch), batch, batch * 64)
    found = []
    try:
        for version in range(plan.steps):
            save_file(policy.published_tensors(), served)
            await engine.load_policy(served, version, None)
            first = version * plan.prompts_per_step
            questions = dict(enumerate(itertools.islice(asked, plan.prompts_per_step), start=first))
            rewards = []
            for made, value in await _sample(plan, engine, tokenizer, questions, draw):
                place = next(places)
                trainer.intake.trajectory(Arrival(made, Place("trajectories", 0, place)))
                trainer.intake.reward(Arrival(_reward(made, value), Place("rewards", 0, place)))
                rewards.append(value)
            found.append(tasks.mean(rewards))
            _step(trainer)
    finally:
        engine.close()
    return found


async def _sample(
    plan: Plan, engine: TransformersEngine, tokenizer: Any, questions: dict[int, str], draw: random.Random
) -> list[tuple[Trajectory, float]]:
    """Every attempt of a step, with its reward."""
    prompts = {number: _prompt(tokenizer, text) for number, text in questions.items()}
    slots = [(number, index) for number in questions for index in range(plan.group_size)]
    requests = [
        GenerateRequest(
            f"{number}/{index}",
            prompts[number],
            plan.max_tokens,
            frozenset({tokenizer.eos_token_id}),
            seed=draw.getrandbits(62),
        )
        for number, index in slots
    ]
    generations = await asyncio.gather(*map(engine.generate, requests))
    out = []
    for (number, index), generation in zip(slots, generations, strict=True):
        text = tokenizer.decode(generation.token_ids, skip_special_tokens=True)
        made = _attempt(plan, (number, index), prompts[number], generation, text)
        out.append((made, tasks.reward(plan.task, questions[number], text)))
    return out


def _step(trainer: Trainer) -> None:
    trainer.review()
    groups = trainer.next_batch()
    if groups is None:
        raise SystemExit("benchmark: a step's groups do not make a batch")
    _, metrics = trainer.train(groups)
    trainer.book(groups, metrics, {})


def _prompt(tokenizer: Any, question: str) -> np.ndarray[Any, np.dtype[np.int32]]:
    """int32[p]"""
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return np.array(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int32)


def _attempt(
    plan: Plan, place: tuple[int, int], prompt: Any, generation: Generation, text: str
) -> Trajectory:
    version = generation.versions[0][1]
    sequence = _sequence(prompt, generation.token_ids, generation.logprobs, version)
    size = plan.group_size
    return _trajectory(
        "rl",
        *place,
        sequence,
        sampling=Sampling(samples=size, group_size=size, max_tokens=plan.max_tokens),
        sampling_mode="sampled",
        stop_reason=generation.stop_reason,
        final_answer=text,
        first_version=version,
        last_version=version,
    )


def _demonstration(tokenizer: Any, number: int, question: str) -> Trajectory:
    right = tokenizer(tasks.right_sum(question), add_special_tokens=False)["input_ids"]
    ids = np.array([*right, tokenizer.eos_token_id], dtype=np.int32)
    sequence = _sequence(_prompt(tokenizer, question), ids, np.zeros(ids.size, np.float32), -1)
    return _trajectory("sft", number, 0, sequence, sampling_mode="demonstration", stop_reason="demonstration")


def _sequence(prompt: Any, ids: Any, logprobs: Any, version: int) -> TokenSequence:
    p, m = len(prompt), len(ids)
    return TokenSequence(
        token_ids=np.concatenate([prompt, ids]),
        loss_mask=np.array([0] * p + [1] * m),
        logprobs=np.concatenate([np.zeros(p, np.float32), logprobs]),
        version_spans=(VersionSpan(length=p, version=-1), VersionSpan(length=m, version=version)),
        role_spans=(RoleSpan(length=p, role="user"), RoleSpan(length=m, role="assistant")),
    )


def _trajectory(kind: str, number: int, index: int, sequence: TokenSequence, **fields: Any) -> Trajectory:
    group = f"0-{kind}-{number:07d}"
    return Trajectory.model_validate(
        {
            "trajectory_id": f"{group}/{index}",
            "slot": Slot(run_id=RUN, group_id=group, sample_index=index),
            "attempt": 1,
            "stage": kind,
            "stage_index": 0,
            "purpose": "train",
            "workload": "single_turn",
            "priority": "normal",
            "domain": DomainRef(name="arithmetic", version=1, seed=number),
            "sampling": Sampling(),
            "sequences": (sequence,),
            **fields,
        }
    )


def _reward(made: Trajectory, value: float) -> Reward:
    return Reward(
        trajectory_id=made.trajectory_id,
        slot=made.slot,
        stage=made.stage,
        stage_index=0,
        purpose="train",
        domain=made.domain.name,
        domain_version=1,
        verdict="passed" if value == 1 else "partial" if value else "failed",
        reward=value,
    )
