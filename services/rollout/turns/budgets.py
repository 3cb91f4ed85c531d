"""How much an attempt may do, and which budget ends it.

Invariant: every attempt ends, and names exactly one budget where one ended it; no request to the engine asks for more
tokens than every budget has left. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shared.contracts import StopReason, Task
from shared.errors import ConfigError

CALLS_PER_TURN = 16


@dataclass(frozen=True, slots=True)
class Budgets:
    """turns: of the policy. turn_tokens: sampled in one turn. tokens: sampled in all. context_tokens: of one context,
    prompt and answers. calls: of tools in all. wall_s: seconds from the first turn. Any of them may be in the
    millions."""

    turns: int
    turn_tokens: int
    tokens: int
    context_tokens: int
    calls: int
    wall_s: float
    calls_per_turn: int = CALLS_PER_TURN

    def __post_init__(self) -> None:
        for name in ("turns", "turn_tokens", "tokens", "context_tokens", "calls", "wall_s", "calls_per_turn"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"budget {name} is {getattr(self, name)}: it must be positive")

    @classmethod
    def of(cls, task: Task, longest: int) -> Budgets:
        """`longest`: tokens that the engine can hold of one request."""
        limits, sampling = task.limits, task.sampling
        return cls(
            turns=limits.turns,
            turn_tokens=sampling.max_tokens,
            tokens=limits.sampled_tokens or limits.turns * sampling.max_tokens,
            context_tokens=min(limits.context_tokens, longest),
            calls=limits.tool_calls or limits.turns * CALLS_PER_TURN,
            wall_s=limits.wall_seconds,
        )


def no_room(prompt: int, limit: int) -> str:
    """Why nothing can be sampled after a prompt of `prompt` tokens."""
    return (
        f"the prompt's {prompt} tokens leave no room in a context of {limit}: raise the episode's context_tokens, or "
        "rollout.max_batch_tokens where that is less"
    )


@dataclass(frozen=True, slots=True)
class Room:
    """Tokens of the next turn, at least 1, and the reason why the attempt is over if they are all used."""

    tokens: int
    binds: StopReason


@dataclass(frozen=True, slots=True)
class Spent:
    turns: int = 0
    tokens: int = 0
    calls: int = 0

    def turn(self, tokens: int) -> Spent:
        return replace(self, turns=self.turns + 1, tokens=self.tokens + tokens)

    def sampled(self, tokens: int) -> Spent:
        """Beside the turns."""
        return replace(self, tokens=self.tokens + tokens)

    def called(self, calls: int) -> Spent:
        return replace(self, calls=self.calls + calls)

    def calls_now(self, budgets: Budgets) -> int:
        """Of the turn that was just taken. 0: a turn that asks for one ends the attempt, one that answers may."""
        return max(0, min(budgets.calls_per_turn, budgets.calls - self.calls))

    def over(self, budgets: Budgets) -> StopReason | None:
        """Before another turn."""
        if self.turns >= budgets.turns:
            return "turns"
        return "tokens" if self.tokens >= budgets.tokens else None

    def room(self, budgets: Budgets, context: int) -> Room | StopReason:
        """For a turn after a context of `context` tokens."""
        ended = self.over(budgets)
        if ended:
            return ended
        if budgets.context_tokens - context < 1:
            return "context"
        ways: list[tuple[int, StopReason]] = [
            (budgets.turn_tokens, "length"),
            (budgets.tokens - self.tokens, "tokens"),
            (budgets.context_tokens - context, "context"),
        ]
        tokens, binds = min(ways, key=lambda way: way[0])  # the first of equals: `length` where a turn is all
        return Room(tokens, binds)
