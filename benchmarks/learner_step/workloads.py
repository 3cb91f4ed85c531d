"""The batches that are stepped on, as plain values that both sides read as JSON.

Ids are drawn by seed: the cost of a step does not depend on which they are. Lengths are what is compared, and say where
they come from.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

FIRST_ID, LAST_ID = 100, 40_000
"""Ordinary tokens of SmolLM2's vocabulary (49,152)."""

Kind = Literal["grpo", "sft", "dpo"]


@dataclass(frozen=True, slots=True)
class Group:
    """A prompt, the answers to it, and what each was worth. For DPO the first is chosen, the second rejected."""

    prompt: list[int]
    answers: list[list[int]]
    rewards: list[float]


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    kind: Kind
    groups: list[Group]
    kl: float = 0.0
    """Coefficient of GRPO's KL, or DPO's beta."""
    micro_batch_tokens: int = 4096
    device_batch: int = 0
    """TRL's per_device_train_batch_size; 0: the whole batch."""
    checkpointing: bool = False
    layers: int = 0
    """Of the model, from below; 0: all."""
    warm: bool = False
    """Our side has taken a step on a few tokens before it is asked for one."""

    @property
    def answers(self) -> int:
        return sum(len(group.answers) for group in self.groups)

    @property
    def completion_tokens(self) -> int:
        return sum(len(answer) for group in self.groups for answer in group.answers)

    @property
    def all_tokens(self) -> int:
        """Every answer with its prompt, padding not counted."""
        return self.completion_tokens + sum(len(group.prompt) * len(group.answers) for group in self.groups)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _ids(draw: random.Random, n: int) -> list[int]:
    return [draw.randint(FIRST_ID, LAST_ID) for _ in range(n)]


def _group(draw: random.Random, prompt: int, lengths: Sequence[int]) -> Group:
    return Group(
        _ids(draw, prompt), [_ids(draw, n) for n in lengths], [float(i % 2) for i in range(len(lengths))]
    )


def short(kl: float = 0.0) -> Workload:
    """8 × 8 answers as `examples/demo.toml` has them: sums of 25 + 3…5 tokens and sorted lists of 32 + 8…11."""
    draw = random.Random(1)
    groups = []
    for index in range(8):
        prompt, low, high = (25, 3, 5) if index % 2 else (32, 8, 11)
        groups.append(_group(draw, prompt, [draw.randint(low, high) for _ in range(8)]))
    return Workload("short_kl" if kl else "short", "grpo", groups, kl)


def long(lengths: Sequence[int] = (2048, 1024), device_batch: int = 0, name: str = "long") -> Workload:
    """One prompt of 128 tokens and its answers; a micro-batch is as long as the longest row."""
    draw = random.Random(2)
    tokens = 128 + max(lengths)
    return Workload(
        name, "grpo", [_group(draw, 128, lengths)], micro_batch_tokens=tokens, device_batch=device_batch
    )


def demonstrations() -> Workload:
    """16 demonstrations, half of the demo's length, half of a worked answer's (24…160 tokens)."""
    draw = random.Random(3)
    lengths = [draw.randint(3, 11) if i % 2 else draw.randint(24, 160) for i in range(16)]
    return Workload("sft", "sft", [_group(draw, draw.randint(25, 60), [n]) for n in lengths])


def pairs() -> Workload:
    """4 pairs: prompts of 64 tokens, answers of 24…128."""
    draw = random.Random(4)
    made = [_group(draw, 64, [draw.randint(24, 128), draw.randint(24, 128)]) for _ in range(4)]
    return Workload("dpo", "dpo", made, kl=0.1)


def one_sequence(tokens: int, checkpointing: bool, layers: int = 0) -> Workload:
    """A demonstration of so many tokens, 32 of them the prompt."""
    draw = random.Random(5)
    return Workload(
        f"one_{tokens}",
        "sft",
        [_group(draw, 32, [tokens - 32])],
        micro_batch_tokens=tokens,
        checkpointing=checkpointing,
        layers=layers,
        warm=True,
    )
