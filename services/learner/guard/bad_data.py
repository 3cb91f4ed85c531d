"""What must never be trained on, by cause.

Invariant: every cause has a name and a reason in words that holds the offending value; nothing is repaired, masked or
guessed. The checks take plain arrays, so that they hold for any source of attempts (topics, files of pairs, replays).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

NOT_SAMPLED = -1
"""The version of a token that no policy sampled; the same number as in the contract."""
LOGPROB_SLACK = 1e-3
"""A log-probability may be above zero by rounding, not more."""

Cause = Literal[
    "empty_completion",
    "length_mismatch",
    "vocabulary_mismatch",
    "no_context",
    "bad_logprob",
    "not_sampled",
    "unknown_version",
    "wrong_sampling_mode",
    "mixed_temperatures",
    "truncated_sampling",
    "empty_group",
    "group_of_one",
    "equal_rewards",
]
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class BadData:
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """One sequence: ids, loss mask (1 where sampled), log-probabilities and versions, all [n]."""

    ids: Array
    mask: Array
    logprobs: Array
    versions: Array


def check_sequence(tokens: Tokens, *, vocabulary: int, version: int, sampled: bool = True) -> BadData | None:
    """`vocabulary`: the model has ids 0 to vocabulary − 1. `version`: the newest policy that this learner made.

    With `sampled` False (demonstrations) log-probabilities and versions mean nothing and are not looked at.
    """
    lengths = {
        "ids": tokens.ids.size,
        "mask": tokens.mask.size,
        "log-probabilities": tokens.logprobs.size,
        "versions": tokens.versions.size,
    }
    if len(set(lengths.values())) != 1:
        said = ", ".join(f"{name} {size}" for name, size in lengths.items())
        return BadData("length_mismatch", f"mask of wrong length: {said}")
    found = _bad_ids(tokens, vocabulary)
    return found or (_bad_sampling(tokens, version) if sampled else None)


def _bad_ids(tokens: Tokens, vocabulary: int) -> BadData | None:
    ids = tokens.ids
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= vocabulary):
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        return BadData(
            "vocabulary_mismatch",
            f"vocabulary mismatch: token id {wrong}, the model has ids 0 to {vocabulary - 1}",
        )
    if tokens.mask.size and tokens.mask[0]:
        return BadData(
            "no_context", "the first token of a sequence has mask 1: it has no context to be predicted from"
        )
    return None


def _bad_sampling(tokens: Tokens, version: int) -> BadData | None:
    mask = tokens.mask.astype(bool)
    logprobs, versions = tokens.logprobs[mask], tokens.versions[mask]
    finite = np.isfinite(logprobs)
    if not finite.all():
        at = int(np.argmin(finite))
        return BadData("bad_logprob", f"log-probability {logprobs[at]} at sampled token {at}")
    if logprobs.size and float(logprobs.max()) > LOGPROB_SLACK:
        return BadData("bad_logprob", f"log-probability {float(logprobs.max()):.4f} is above zero")
    if versions.size and int(versions.min()) <= NOT_SAMPLED:
        return BadData("not_sampled", "a token with mask 1 that no policy version sampled")
    if versions.size and int(versions.max()) > version:
        return BadData(
            "unknown_version",
            f"sampled by version {int(versions.max())}, which this learner has not made (now {version})",
        )
    return None


def check_completion(sampled_tokens: int) -> BadData | None:
    if sampled_tokens == 0:
        return BadData("empty_completion", "empty completion: no token has mask 1")
    return None


def check_distribution(*, mode: str, temperature: float, top_p: float, expected: float) -> BadData | None:
    """Ratios need the distribution that the learner computes: sampled, in full, at the stage's temperature."""
    if mode != "sampled":
        return BadData("wrong_sampling_mode", f"sampling mode {mode!r}: greedy attempts are not trained on")
    if temperature != expected:
        return BadData(
            "mixed_temperatures",
            f"mixed temperatures: sampled at {temperature}, the stage says {expected}",
        )
    if top_p != 1.0:
        return BadData(
            "truncated_sampling", f"truncated sampling: top_p {top_p}; ratios need the full distribution"
        )
    return None


def check_group(rewards: Sequence[float], temperatures: Sequence[float] = ()) -> BadData | None:
    """Of what is left of a group after its attempts were checked, where attempts are compared with each other."""
    if len(set(temperatures)) > 1:
        said = ", ".join(f"{temperature:g}" for temperature in sorted(set(temperatures)))
        return BadData("mixed_temperatures", f"mixed temperatures in one group: {said}")
    if len(rewards) == 1:
        return BadData("group_of_one", "group of one: nothing to compare its attempt with")
    if not rewards:
        return BadData("empty_group", "a group without a usable attempt")
    if all(reward == rewards[0] for reward in rewards):
        return BadData("equal_rewards", f"all {len(rewards)} rewards are {rewards[0]:g}: no signal")
    return None
