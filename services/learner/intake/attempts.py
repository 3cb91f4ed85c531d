"""What is wrong with one attempt, if anything.

Invariant: an attempt that is refused has a fate and a reason in words; nothing is repaired, masked or guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.learner.intake.join import FilledSlot
from services.learner.objectives.presets import Objective
from shared.contracts import NOT_SAMPLED, Fate, Sequence, Trajectory

LOGPROB_SLACK = 1e-3
"""A log-probability may be above zero by rounding, not more."""


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

    @property
    def imitation(self) -> bool:
        return self.objective.kind == "imitation"


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
    if slot.faulted:
        return Refusal("faulted", trajectory.fault or (reward.reason if reward else "") or "infrastructure")
    if trajectory.stop_reason == "cancelled":
        return Refusal("faulted", "cancelled")
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
    if not terms.imitation and oldest < terms.version - terms.max_lag:
        return Refusal("stale", f"sampled by version {oldest}, now {terms.version}, max_lag {terms.max_lag}")
    return None


def _broken(trajectory: Trajectory, terms: Terms) -> str:
    if trajectory.sampled_tokens() == 0:
        return "empty completion: no token has mask 1"
    demonstration = trajectory.sampling_mode == "demonstration"
    if demonstration != terms.imitation:
        return f"sampling mode {trajectory.sampling_mode!r} in a stage that " + (
            "imitates demonstrations" if terms.imitation else "learns from rewards"
        )
    for sequence in trajectory.sequences:
        problem = _broken_ids(sequence, terms.vocabulary)
        if not problem and not demonstration:
            problem = _broken_sampling(sequence, terms.version)
        if problem:
            return problem
    return "" if demonstration else _other_distribution(trajectory, terms.temperature)


def _broken_ids(sequence: Sequence, vocabulary: int) -> str:
    ids = sequence.token_ids
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= vocabulary):
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        return f"vocabulary mismatch: token id {wrong}, the model has ids 0 to {vocabulary - 1}"
    if sequence.loss_mask.size and sequence.loss_mask[0]:
        return "the first token of a sequence has mask 1: it has no context to be predicted from"
    return ""


def _broken_sampling(sequence: Sequence, version: int) -> str:
    mask = sequence.loss_mask.astype(bool)
    logprobs = sequence.logprobs[mask]
    finite = np.isfinite(logprobs)
    if not finite.all():
        return f"log-probability {logprobs[~finite][0]} at sampled token {int(np.argmin(finite))}"
    if logprobs.size and float(logprobs.max()) > LOGPROB_SLACK:
        return f"log-probability {float(logprobs.max()):.4f} is above zero"
    versions = sequence.versions()[mask]
    if versions.size and int(versions.min()) == NOT_SAMPLED:
        return "a token with mask 1 that no policy version sampled"
    if versions.size and int(versions.max()) > version:
        return f"sampled by version {int(versions.max())}, which this learner has not made (now {version})"
    return ""


def _other_distribution(trajectory: Trajectory, temperature: float) -> str:
    sampling = trajectory.sampling
    if trajectory.sampling_mode != "sampled":
        return f"sampling mode {trajectory.sampling_mode!r}: greedy attempts are not trained on"
    if sampling.temperature != temperature:
        return f"mixed temperatures: sampled at {sampling.temperature}, the stage says {temperature}"
    if sampling.top_p != 1.0:
        return f"truncated sampling: top_p {sampling.top_p}; ratios need the full distribution"
    return ""
