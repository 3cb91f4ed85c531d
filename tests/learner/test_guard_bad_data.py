"""Everything that must never be trained on has a name, and the name reaches the one who reads the book."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_builders import reward, trajectory

from services.learner.guard.bad_data import (
    BadData,
    Tokens,
    check_completion,
    check_distribution,
    check_group,
    check_sequence,
)
from services.learner.intake.attempts import Terms
from services.learner.intake.groups import judge
from services.learner.intake.join import FilledSlot
from services.learner.objectives.presets import preset
from shared.contracts import NOT_SAMPLED as CONTRACTS_NOT_SAMPLED


def tokens(**changes: Any) -> Tokens:
    fields: dict[str, Any] = {
        "ids": [1, 2, 3],
        "mask": [0, 1, 1],
        "logprobs": [0.0, -1.0, -2.0],
        "versions": [-1, 4, 5],
    }
    return Tokens(**{name: np.array(value) for name, value in {**fields, **changes}.items()})


def checked(made: Tokens, **how: Any) -> BadData | None:
    return check_sequence(made, **{"vocabulary": 32, "version": 5, **how})


def test_good_data_is_not_refused() -> None:
    assert checked(tokens()) is None
    assert check_completion(1) is None
    assert check_distribution(mode="sampled", temperature=0.7, top_p=1.0, expected=0.7) is None
    assert check_group([0.0, 1.0], [0.7, 0.7]) is None
    assert checked(tokens(logprobs=[math.nan, -1.0, 0.0005])) is None  # unsampled, and rounding


@pytest.mark.parametrize(
    ("changes", "cause", "words"),
    [
        ({"logprobs": [0.0, -1.0, math.nan]}, "bad_logprob", "log-probability nan at sampled token 1"),
        ({"logprobs": [0.0, -math.inf, -1.0]}, "bad_logprob", "log-probability -inf at sampled token 0"),
        ({"logprobs": [0.0, 0.1, -1.0]}, "bad_logprob", "0.1000 is above zero"),
        ({"mask": [0, 1]}, "length_mismatch", "mask of wrong length: ids 3, mask 2"),
        ({"versions": [-1, 4, 5, 5]}, "length_mismatch", "versions 4"),
        ({"ids": [1, 32, 3]}, "vocabulary_mismatch", "token id 32, the model has ids 0 to 31"),
        ({"ids": [-7, 2, 3]}, "vocabulary_mismatch", "token id -7"),
        ({"mask": [1, 1, 1]}, "no_context", "no context"),
        ({"versions": [-1, 4, 6]}, "unknown_version", "version 6, which this learner has not made (now 5)"),
        ({"versions": [-1, -1, 5]}, "not_sampled", "no policy version sampled"),
    ],
)
def test_a_bad_sequence_is_named(changes: dict[str, Any], cause: str, words: str) -> None:
    found = checked(tokens(**changes))
    assert found is not None and found.cause == cause and words in found.reason


def test_demonstrations_have_no_log_probabilities_to_look_at() -> None:
    made = tokens(logprobs=[0.0, math.nan, 0.0], versions=[-1, -1, -1])
    assert checked(made, sampled=False) is None
    assert checked(tokens(ids=[1, 2, 99]), sampled=False) is not None


@pytest.mark.parametrize(
    ("found", "cause", "words"),
    [
        (check_completion(0), "empty_completion", "empty completion"),
        (
            check_distribution(mode="greedy", temperature=1.0, top_p=1.0, expected=1.0),
            "wrong_sampling_mode",
            "'greedy'",
        ),
        (
            check_distribution(mode="sampled", temperature=0.7, top_p=1.0, expected=1.0),
            "mixed_temperatures",
            "sampled at 0.7, the stage says 1.0",
        ),
        (
            check_distribution(mode="sampled", temperature=1.0, top_p=0.9, expected=1.0),
            "truncated_sampling",
            "top_p 0.9",
        ),
        (check_group([1.0]), "group_of_one", "group of one"),
        (check_group([]), "empty_group", "without a usable attempt"),
        (check_group([0.35] * 8), "equal_rewards", "all 8 rewards are 0.35"),
        (check_group([0.0, 1.0], [1.0, 0.7]), "mixed_temperatures", "in one group: 0.7, 1"),
    ],
)
def test_bad_attempts_and_groups_are_named(found: BadData | None, cause: str, words: str) -> None:
    assert found is not None and found.cause == cause and words in found.reason


def test_a_group_without_signal_says_why() -> None:
    terms = Terms(preset("grpo"), vocabulary=32, max_tokens=64, version=0, max_lag=1)

    def group(*values: float) -> Any:
        slots = {
            index: FilledSlot(made, reward(made, value), (), "")
            for index, value in enumerate(values)
            for made in [trajectory(sample=index)]
        }
        return judge("0-rl-0000000", slots, terms)

    assert group(0.0, 1.0).silence is None
    assert group(1.0).silence.cause == "group_of_one"
    assert group(1.0, 1.0).silence.cause == "equal_rewards"


def test_no_version_is_the_same_number_everywhere() -> None:
    from services.learner.guard import bad_data

    assert bad_data.NOT_SAMPLED == CONTRACTS_NOT_SAMPLED


arrays = st.lists(st.integers(-3, 40), max_size=5)
numbers = st.lists(st.floats(width=32), max_size=5)


@given(arrays, st.lists(st.integers(0, 1), max_size=5), numbers, arrays)
def test_what_passes_can_be_trained_on(
    ids: list[int], mask: list[int], logprobs: list[float], versions: list[int]
) -> None:
    """Whatever comes in, nothing raises; and what is not refused has everything that a loss needs."""
    made = Tokens(
        np.array(ids, dtype=np.int32),
        np.array(mask, dtype=np.uint8),
        np.array(logprobs, dtype=np.float32),
        np.array(versions, dtype=np.int32),
    )
    if checked(made) is not None:
        return
    assert len(ids) == len(mask) == len(logprobs) == len(versions)
    for index, (token, sampled, logprob, version) in enumerate(
        zip(ids, mask, logprobs, versions, strict=True)
    ):
        assert 0 <= token < 32
        if sampled:
            assert index > 0 and math.isfinite(logprob) and logprob <= 1e-3 and 0 <= version <= 5
