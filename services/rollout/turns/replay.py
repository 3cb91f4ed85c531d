"""A demonstration, said turn by turn in the place of the policy.

Invariant: its tools really run, so what stands between its turns is what a policy would have read; nothing of it was
sampled, and every token says so (version NOT_SAMPLED, log-probability 0, mask 1: it is to be imitated).

A domain writes the calls of a demonstration as JSON in `<tool_call>` tags, whatever the model; they are written anew
in the form that the model's template is for. Messages of tools in a demonstration are left out: the tools answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.rollout.engines.base import Generation, Ids
from services.rollout.formats.calls import Call, Format
from services.rollout.formats.hermes import Hermes
from services.rollout.turns.tokens import Tokens
from shared.contracts import NOT_SAMPLED, ChatMessage, StopReason, Task
from shared.errors import ContractError


@dataclass(frozen=True, slots=True)
class Replay:
    """Says the assistant's messages of `shown` in the place of a `Sampler`."""

    shown: tuple[str, ...]
    tokens: Tokens
    group: str

    @classmethod
    def of(cls, shown: Sequence[ChatMessage], form: Format, tokens: Tokens, group: str) -> Replay:
        """Raises `ContractError` for a demonstration without a turn, or with a call that is malformed."""
        turns = [message.content for message in shown if message.role == "assistant"]
        if not turns:
            raise ContractError(f"task {group}: its demonstration has no message of the assistant")
        return cls(tuple(_in_form(turn, form, group) for turn in turns), tokens, group)

    async def sample(self, context: Ids, max_tokens: int, turn: int, what: str = "") -> Generation:
        """Raises `ContractError` where the demonstration is at its end, or its turn longer than `max_tokens`."""
        if turn >= len(self.shown) or what:
            raise ContractError(
                f"task {self.group}: its demonstration of {len(self.shown)} turns does not end the attempt: let its last "
                "turn be an answer, or submit one"
            )
        end = np.array([self.tokens.end_id], dtype=np.int32)
        ids = np.concatenate([self.tokens.encode(self.shown[turn])[0], end])
        if len(ids) > max_tokens:
            raise ContractError(
                f"task {self.group}: turn {turn + 1} of its demonstration has {len(ids)} tokens and there is room for "
                f"{max_tokens}: raise max_tokens or limits.context_tokens"
            )
        return Generation(ids, np.zeros(len(ids), dtype=np.float32), ((len(ids), NOT_SAMPLED),), "stop")


def check_whole(task: Task, stop: StopReason, turns: int) -> None:
    """Raises `ContractError` for a demonstration that met a limit before its end."""
    if task.demonstration and stop != "stop":
        raise ContractError(
            f"task {task.group_id}: its demonstration reached the limit {stop!r} after {turns} turns: raise the task's limits"
        )


def _in_form(turn: str, form: Format, group: str) -> str:
    if isinstance(form, Hermes):
        return turn
    parsed = Hermes().parse(turn)
    calls = [call for call in parsed.calls if isinstance(call, Call)]
    if len(calls) < len(parsed.calls):
        raise ContractError(f"task {group}: a call of its demonstration is malformed: {parsed.calls}")
    return form.render(calls, parsed.said) if calls else turn
