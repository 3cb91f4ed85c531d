"""What is wrong with one attempt, if anything.

Invariant: an attempt that is refused has a fate and a reason in words; nothing is repaired, masked or guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.learner.guard.bad_data import Tokens, check_completion, check_distribution, check_sequence
from services.learner.intake.join import FilledSlot
from services.learner.objectives.presets import Objective
from shared.contracts import NOT_SAMPLED, Fate, Sequence, Trajectory


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms attempts are trained on now."""

    objective: Objective
    vocabulary: int
    """Ids of the model: 0 to vocabulary − 1."""
    max_tokens: int
    """Of one sequence: the model's positions."""
    version: int
    """The learner's current policy version."""
    max_lag: int
    temperature: float = 1.0
    data: bool = False
    """The stage learns from a data set: its answers were sampled by nobody."""
    first_version: int = 0
    """The policy that the stage began with, where it began from other weights: nothing older is of this stage."""

    @property
    def imitation(self) -> bool:
        return self.objective.kind == "imitation"

    @property
    def preference(self) -> bool:
        return self.objective.kind == "preference"

    @property
    def demonstrated(self) -> bool:
        return self.imitation or self.data

    @property
    def oldest(self) -> int:
        """The oldest version whose tokens are trained on."""
        return max(self.version - self.max_lag, self.first_version)


@dataclass(frozen=True, slots=True)
class Refusal:
    fate: Fate
    reason: str


def oldest_version(trajectory: Trajectory) -> int:
    """The oldest policy that sampled a token of it; NOT_SAMPLED where none did."""
    sampled = [
        span.version
        for sequence in trajectory.sequences
        for span in sequence.version_spans
        if span.version != NOT_SAMPLED
    ]
    return min(sampled, default=NOT_SAMPLED)


def refuse(slot: FilledSlot, terms: Terms) -> Refusal | None:
    """Why this attempt is not trained on; None where it may be."""
    trajectory, reward = slot.trajectory, slot.reward
    if trajectory.stop_reason == "cancelled":
        return Refusal("surplus", "its group had enough attempts without it")
    if slot.faulted:
        return Refusal("faulted", trajectory.fault or (reward.reason if reward else "") or "infrastructure")
    if reward is not None and reward.verdict == "unverifiable":
        return Refusal("unverifiable", reward.reason or "the verifier could not tell")
    broken = _broken(trajectory, terms)
    if broken:
        return Refusal("invalid", broken)
    longest = max(sequence.token_ids.size for sequence in trajectory.sequences)
    if longest > terms.max_tokens:
        return Refusal("over_length", f"{longest} tokens, the model reads {terms.max_tokens}")
    if trajectory.stop_reason == "length" and terms.objective.truncated == "drop":
        return Refusal("over_length", f"ran into max_tokens {trajectory.sampling.max_tokens}")
    oldest = oldest_version(trajectory)
    if not terms.demonstrated and oldest < terms.oldest:
        because = (
            f"the stage began with {terms.first_version}"
            if terms.oldest == terms.first_version
            else f"max_lag {terms.max_lag}"
        )
        return Refusal("stale", f"sampled by version {oldest}, now {terms.version}, {because}")
    return None


def _broken(trajectory: Trajectory, terms: Terms) -> str:
    empty = check_completion(trajectory.sampled_tokens())
    if empty:
        return empty.reason
    demonstration = trajectory.sampling_mode == "demonstration"
    if demonstration != terms.demonstrated:
        return f"sampling mode {trajectory.sampling_mode!r} in a stage that " + (
            "learns from a data set"
            if terms.data
            else "imitates demonstrations"
            if terms.imitation
            else "learns from rewards"
        )
    for sequence in trajectory.sequences:
        found = check_sequence(
            _tokens(sequence),
            vocabulary=terms.vocabulary,
            version=terms.version,
            sampled=not demonstration,
        )
        if found:
            return found.reason
    if demonstration:
        return ""
    sampling = trajectory.sampling
    found = check_distribution(
        mode=trajectory.sampling_mode,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        expected=terms.temperature,
    )
    return found.reason if found else ""


def _tokens(sequence: Sequence) -> Tokens:
    return Tokens(sequence.token_ids, sequence.loss_mask, sequence.logprobs, sequence.versions())
