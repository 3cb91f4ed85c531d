"""Attempts that are handed back, and gone on with: pure.

Invariant: what was sampled before and after stands in one turn as it was sampled, each token with the version of its
own; where the context is another than the one that was sampled from, nothing of it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from services.rollout.engines.base import EngineTimings, Generation, Ids, runs_of
from shared.contracts import Continuation, SampledTurn, Slot, Task, ToolTurn, WorkspaceRef


class OtherContextError(Exception):
    """The attempt's context is not the one that its turns were sampled from; it starts again."""


def digest(context: Ids) -> str:
    return hashlib.sha256(np.ascontiguousarray(context, dtype="<i4").tobytes()).hexdigest()


def turn_of(made: Generation) -> SampledTurn:
    """`made` has at least one token."""
    return SampledTurn(
        token_ids=made.token_ids,
        logprobs=made.logprobs,
        versions=np.repeat(
            np.array([version for _, version in made.versions], dtype=np.int32),
            [length for length, _ in made.versions],
        ),
        stop_reason=made.stop_reason,
        prefill_s=made.timings.prefill,
        decode_s=made.timings.decode,
    )


def generation_of(turn: SampledTurn) -> Generation:
    return Generation(
        token_ids=turn.token_ids,
        logprobs=turn.logprobs,
        versions=runs_of(turn.versions.tolist()),
        stop_reason=turn.stop_reason,
        timings=EngineTimings(prefill=turn.prefill_s, decode=turn.decode_s),
    )


def joined(before: Generation, after: Generation) -> Generation:
    """One turn of both; it ends as `after` does."""
    first, second = before.timings, after.timings
    return Generation(
        token_ids=np.concatenate([before.token_ids, after.token_ids]),
        logprobs=np.concatenate([before.logprobs, after.logprobs]),
        versions=_runs((*before.versions, *after.versions)),
        stop_reason=after.stop_reason,
        timings=EngineTimings(
            queued=first.queued + second.queued,
            prefill=first.prefill + second.prefill,
            decode=first.decode + second.decode,
        ),
    )


def _runs(runs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    out: list[tuple[int, int]] = []
    for length, version in runs:
        if out and out[-1][1] == version:
            out[-1] = (out[-1][0] + length, version)
        else:
            out.append((length, version))
    return tuple(out)


@dataclass(slots=True)
class Course:
    """The turns of one attempt as it takes them, those of earlier processes first.

    `begun` gives the turn of a number as far as it was sampled before; `made` takes each turn as it is now.
    """

    before: Continuation | None = None
    turns: list[Generation] = field(default_factory=list)
    context: str = ""
    """Digest of what the last turn follows."""
    lost: str = ""
    """Why it can only start again: something beside the turns was sampled, or kept where nobody else comes to."""
    tool_turns: list[ToolTurn] = field(default_factory=list)
    """Of tools that are not to run again."""
    workspace: WorkspaceRef | None = None
    """As they left it."""
    before_calls: str | None = None
    """The snapshot of a sandbox that the tools that run now began from, while they do."""

    @property
    def hops(self) -> int:
        return self.before.hops if self.before else 0

    def begun(self, number: int, context: Ids) -> Generation | None:
        """Raises `OtherContextError` for another context than was sampled from."""
        if self.before is None or number >= len(self.before.turns):
            return None
        if number == len(self.before.turns) - 1 and digest(context) != self.before.context_sha256:
            raise OtherContextError(f"turn {number + 1} of the attempt would follow another context")
        return generation_of(self.before.turns[number])

    def told(self, turn: int) -> ToolTurn | None:
        """What an earlier process's tools answered to the turn of this number."""
        before = self.before.tool_turns if self.before else ()
        return before[turn] if turn < len(before) else None

    def again(self) -> Course:
        """Of the same attempt, from its beginning."""
        return Course(Continuation(hops=self.hops) if self.before else None)

    def made(self, turn: Generation, context: Ids) -> None:
        if len(turn.token_ids):
            self.turns.append(turn)
            self.context = digest(context)

    def handed_back(self) -> Continuation:
        if not self.lost and self.before is not None and self._behind(self.before):
            return self.before.model_copy(update={"hops": self.hops + 1})
        if self.lost or not self.turns:
            return Continuation(hops=self.hops + 1)
        return Continuation(
            hops=self.hops + 1,
            turns=tuple(turn_of(turn) for turn in self.turns),
            context_sha256=self.context,
            tool_turns=tuple(self.tool_turns),
            workspace=self.workspace,
        )

    def _behind(self, before: Continuation) -> bool:
        """It was not even told again as far as it had come: it waited for a sandbox, and what is in there is further."""
        return len(self.turns) < len(before.turns) or len(self.tool_turns) < len(before.tool_turns)


def task_of(task: Task, slot: Slot, rest: Continuation) -> Task:
    """The same attempt at one slot, for whoever takes it: never with an older policy than has sampled of it."""
    sampling = task.sampling.model_copy(
        update={"samples": 1, "first_sample_index": slot.sample_index, "enough": 0}
    )
    oldest = max(task.min_policy_version, rest.newest_version)
    return task.model_copy(update={"sampling": sampling, "continuation": rest, "min_policy_version": oldest})


def rest_of(prompt: Ids, begun: Generation, max_tokens: int) -> tuple[Ids, int]:
    """(the context to go on from, the tokens that are left)."""
    return np.concatenate([prompt, begun.token_ids]), max_tokens - len(begun.token_ids)
