"""The ledger of tokens: each sampled token is booked once, to what became of it.

Invariant: nothing but `trained` counts as output; the sum over fates is everything that was sampled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from shared.contracts import Fate, Trajectory


def prompt_tokens(trajectory: Trajectory) -> int:
    """Tokens that the policy read and did not sample."""
    return sum(sequence.token_ids.size for sequence in trajectory.sequences) - trajectory.sampled_tokens()


class Ledger:
    """Sampled tokens by fate since it was last taken; `state` is what `to_state` returned."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self._tokens: Counter[str] = Counter(state.get("tokens", {}))
        self._prompt: int = state.get("prompt", 0)

    def book(self, fate: Fate, trajectories: Iterable[Trajectory]) -> None:
        for trajectory in trajectories:
            self._tokens[fate] += trajectory.sampled_tokens()
            self._prompt += prompt_tokens(trajectory)

    def take(self) -> tuple[dict[str, int], int]:
        """({fate: sampled tokens}, prompt tokens) since the last call; starts again at zero."""
        tokens, prompt = dict(sorted(self._tokens.items())), self._prompt
        self._tokens.clear()
        self._prompt = 0
        return tokens, prompt

    def to_state(self) -> dict[str, Any]:
        """JSON: what no step has taken yet."""
        return {"tokens": dict(sorted(self._tokens.items())), "prompt": self._prompt}


def effective_throughput(trained_trajectories: int, seconds: float, accelerators: int = 1) -> float:
    """Valid trajectories (verified, fresh, with signal, trained) per accelerator-second."""
    return trained_trajectories / (seconds * accelerators) if seconds > 0 else 0.0
