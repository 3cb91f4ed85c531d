"""The tasks of both sides, with the standard library alone: TRL's interpreter reads this file too.

Invariant: prompts and rewards are functions of the task, the seed and the answer's text; both sides see the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

LETTERS = "abcdefgh"
ARMS = 10


@dataclass(frozen=True)
class Plan:
    """What both sides are told of one curve."""

    task: str
    model: str
    seed: int
    steps: int
    prompts_per_step: int
    group_size: int
    max_tokens: int
    learning_rate: float
    epsilon: float = 0.2
    max_gradient_norm: float = 1.0

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def questions(plan: Plan) -> list[str]:
    """One a group, step by step."""
    draw = random.Random(f"{plan.task} {plan.seed}")
    return [ASKS[plan.task](draw) for _ in range(plan.steps * plan.prompts_per_step)]


def reward(task: str, question: str, answer: str) -> float:
    """In [0, 1]."""
    return REWARDS[task](question, answer)


def ask_bandit(draw: random.Random) -> str:
    return draw.choice(LETTERS)


def pay_bandit(question: str, answer: str) -> float:
    """Arm d of letter i pays ((d + 3i) mod 10) / 9; what is no arm pays nothing."""
    if len(answer) != 1 or answer not in "0123456789":
        return 0.0
    return ((int(answer) + 3 * LETTERS.index(question)) % ARMS) / (ARMS - 1)


def ask_sum(draw: random.Random) -> str:
    return f"{draw.randrange(10)}+{draw.randrange(10)}="


def pay_sum(question: str, answer: str) -> float:
    return float(answer == right_sum(question))


def right_sum(question: str) -> str:
    left, right = question.rstrip("=").split("+")
    return str(int(left) + int(right))


ASKS: dict[str, Callable[[random.Random], str]] = {"bandit": ask_bandit, "arithmetic": ask_sum}
REWARDS: dict[str, Callable[[str, str], float]] = {"bandit": pay_bandit, "arithmetic": pay_sum}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
