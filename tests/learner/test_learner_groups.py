"""Bad data is named and never trained on; a group is resolved as a whole."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from learner_builders import RUN, demonstration, reward, sequence, trajectory
from pydantic import ValidationError

from services.learner.intake.attempts import Terms, refuse
from services.learner.intake.groups import judge
from services.learner.intake.intake import Intake
from services.learner.intake.join import Arrival, FilledSlot
from services.learner.intake.offsets import Place
from services.learner.intake.reader import may_read_ahead
from services.learner.intake.resolved import ResolvedGroups
from services.learner.objectives.presets import preset
from shared.contracts import DomainRef, Reward, Sampling, Sequence, Trajectory

GROUP = "0-rl-0000000"


def terms(**changes: Any) -> Terms:
    fields: dict[str, Any] = {
        "objective": preset("grpo"),
        "vocabulary": 32,
        "max_tokens": 64,
        "version": 5,
        "max_lag": 1,
    }
    return Terms(**{**fields, **changes})


def slot(made: Trajectory, value: float | None = 1.0, **how: Any) -> FilledSlot:
    return FilledSlot(made, reward(made, value, **how), (), "")


def good(sample: int = 0, **changes: Any) -> Trajectory:
    return trajectory(GROUP, sample, version=5, **changes)


def changed(of: Sequence, **arrays: Any) -> Sequence:
    return of.model_copy(update={name: np.array(value) for name, value in arrays.items()})


FIVE = sequence([1, 2, 3], [4, 5], version=5)
BAD: list[tuple[str, Trajectory, str, str]] = [
    ("nan", good(sequences=(sequence([1], [2, 3], [-1.0, math.nan], 5),)), "invalid", "log-probability nan"),
    ("infinite", good(sequences=(sequence([1], [2], [-math.inf], 5),)), "invalid", "log-probability -inf"),
    ("above zero", good(sequences=(sequence([1], [2], [0.5], 5),)), "invalid", "above zero"),
    ("empty", good(sequences=(sequence([1, 2], [], [], 5),)), "invalid", "empty completion"),
    (
        "vocabulary",
        good(sequences=(sequence([1, 2], [32], version=5),)),
        "invalid",
        "vocabulary mismatch: token id 32",
    ),
    ("negative id", good(sequences=(sequence([-1, 2], [3], version=5),)), "invalid", "token id -1"),
    ("no context", good(sequences=(sequence([], [3, 4], version=5),)), "invalid", "no context"),
    ("future", good(sequences=(sequence([1], [2], version=6),)), "invalid", "has not made"),
    (
        "nobody",
        good(sequences=(changed(sequence([1, 2], [3], version=5), loss_mask=[0, 1, 1]),)),
        "invalid",
        "no policy",
    ),
    (
        "temperature",
        good(sampling=Sampling(group_size=2, samples=2, temperature=0.7)),
        "invalid",
        "mixed temperatures",
    ),
    ("top_p", good(sampling=Sampling(group_size=2, samples=2, top_p=0.9)), "invalid", "top_p 0.9"),
    ("greedy", good(sampling_mode="greedy"), "invalid", "greedy"),
    ("long", good(sequences=(sequence([1] * 60, [2] * 5, version=5),)), "over_length", "65 tokens"),
    ("stale", good(sequences=(sequence([1], [2], version=3),)), "stale", "version 3, now 5"),
    ("cancelled", good(stop_reason="cancelled"), "surplus", "enough"),
]


@pytest.mark.parametrize(("name", "made", "fate", "reason"), BAD, ids=[case[0] for case in BAD])
def test_a_bad_attempt_is_named(name: str, made: Trajectory, fate: str, reason: str) -> None:
    found = refuse(slot(made), terms())
    assert found is not None and found.fate == fate and reason in found.reason
    judged = judge(GROUP, {0: slot(made, 0.0), 1: slot(good(1))}, terms())
    assert judged.fates() == {0: fate, 1: "zero_signal"} and not judged.counts(terms())


def test_a_good_attempt_is_not_refused() -> None:
    assert refuse(slot(good()), terms()) is None
    oldest_allowed = good(sequences=(sequence([1], [2], version=4),))
    assert refuse(slot(oldest_allowed), terms()) is None
    two = good(sequences=(FIVE, sequence([1], [2], version=3)))
    refusal = refuse(slot(two), terms())
    assert refusal is not None and refusal.fate == "stale"  # one old token is enough


def test_a_truncated_attempt_is_trained_or_dropped_by_choice() -> None:
    made = good(stop_reason="length")
    assert refuse(slot(made), terms()) is None
    dropped = refuse(slot(made), terms(objective=preset("grpo", truncated="drop")))
    assert dropped is not None and dropped.fate == "over_length"


def test_a_mask_of_another_length_is_refused_by_the_contract() -> None:
    with pytest.raises(ValidationError, match="lengths differ"):
        Sequence(**{**FIVE.model_dump(), "loss_mask": [0, 0, 0, 1]})


@pytest.mark.parametrize(
    ("verdict", "fate"),
    [("infrastructure", "faulted"), ("timeout_infra", "faulted"), ("unverifiable", "unverifiable")],
)
def test_a_fault_is_never_a_zero(verdict: str, fate: str) -> None:
    faulted = slot(good(0), None, verdict=verdict, reason="it broke")
    judged = judge(GROUP, {0: faulted, 1: slot(good(1), 1.0), 2: slot(good(2), 0.0)}, terms())
    assert judged.fates() == {0: fate, 1: "trained", 2: "trained"}
    assert judged.refusals[0].reason == "it broke"
    assert list(judged.advantages.values()) == pytest.approx([0.7071, -0.7071], abs=1e-3)
    assert 0 not in judged.advantages


def test_equal_rewards_are_zero_signal_and_count_unless_sampling_is_dynamic() -> None:
    judged = judge(GROUP, {0: slot(good(0), 0.35), 1: slot(good(1), 0.35)}, terms())
    assert judged.fates() == {0: "zero_signal", 1: "zero_signal"}
    assert set(judged.advantages.values()) == {0.0}
    assert judged.counts(terms())
    assert not judged.counts(terms(objective=preset("dapo")))


def test_long_answers_are_shaped() -> None:
    objective = preset("grpo", overlong_cache=8)
    short = good(0, sequences=(sequence([1], [2] * 4, version=5),))
    long = good(1, sequences=(sequence([1], [2] * 16, version=5),))
    judged = judge(GROUP, {0: slot(short, 1.0), 1: slot(long, 1.0)}, terms(objective=objective))
    assert judged.signal and judged.advantages[0] > 0 > judged.advantages[1]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_dynamic_sampling_asks_the_verifier_and_not_the_length(value: float) -> None:
    """DAPO drops groups that are all right or all wrong (arXiv 2503.14476, eq. 11), whatever their lengths."""
    objective = preset("dapo", overlong_cache=8)
    short = good(0, sequences=(sequence([1], [2] * 4, version=5),))
    long = good(1, sequences=(sequence([1], [2] * 16, version=5),))
    judged = judge(GROUP, {0: slot(short, value), 1: slot(long, value)}, terms(objective=objective))
    assert not judged.signal and not judged.counts(terms(objective=objective))
    assert set(judged.advantages.values()) == {0.0}
    mixed = judge(GROUP, {0: slot(short, 1.0), 1: slot(long, 0.0)}, terms(objective=objective))
    assert mixed.signal and mixed.advantages[0] > 0 > mixed.advantages[1]


def test_demonstrations_need_no_reward_and_rewards_need_no_demonstrations() -> None:
    imitate = terms(objective=preset("sft"))
    made = demonstration("0-sft-0000000")
    judged = judge("0-sft-0000000", {0: FilledSlot(made, None, (), "")}, imitate)
    assert judged.fates() == {0: "trained"} and judged.counts(imitate)
    mixed = refuse(FilledSlot(made, None, (), ""), terms())
    assert mixed is not None and "demonstration" in mixed.reason


class Feed:
    """Feeds one intake by hand."""

    def __init__(self, size: int = 2, stages: int = 1) -> None:
        self.intake = Intake(RUN, [size] * stages)
        self.offset = 0

    def __call__(self, message: Trajectory | Reward) -> str:
        place = Place("t", 0, self.offset)
        self.offset += 1
        if isinstance(message, Trajectory):
            return self.intake.trajectory(Arrival(message, place))
        return self.intake.reward(Arrival(message, place))


def test_the_first_complete_pair_fills_the_slot() -> None:
    feed = Feed()
    first, second = trajectory(name="a"), trajectory(name="b", attempt=2)
    assert feed(first) == "waits"
    assert feed(second) == "waits"
    assert feed(reward(second)) == "filled"
    assert feed(reward(first)) == "repeated"  # too late: fenced
    assert feed(trajectory(name="c")) == "duplicate"
    assert feed(second) == "repeated"
    assert feed.intake.waiting() == (0, 0)
    assert feed.intake.ledger.take()[0] == {"duplicate": 4}


def test_an_infrastructure_fault_needs_no_reward() -> None:
    feed = Feed()
    broken = trajectory(stop_reason="infrastructure", fault="the engine died")
    assert feed(broken) == "filled"
    assert feed(trajectory(sample=1)) == "waits"
    assert feed(reward(trajectory(sample=1))) == "completed"
    fates, refused, _ = feed.intake.review(0, terms(version=0))
    assert fates[0].fates == ("faulted", "zero_signal")
    assert [(r[1], r[3].reason) for r in refused] == [(0, "the engine died")]


def test_a_resolved_group_never_comes_back() -> None:
    feed = Feed()
    for sample in range(2):
        feed(trajectory(sample=sample))
        feed(reward(trajectory(sample=sample), float(sample)))
    (judged,) = feed.intake.batch(0, terms(version=0), 1) or []
    feed.intake.resolve(judged.group_id, judged.fates())
    assert feed(trajectory(sample=0, name="late")) == "duplicate"
    assert feed.intake.buffered == 0
    assert feed.intake.ledger.take()[0] == {"trained": 4, "duplicate": 2}
    assert feed.intake.to_state({("t", 0): feed.offset})["offsets"][0]["needed"] == []


def test_a_stage_that_ends_expires_what_is_left_and_what_comes_late() -> None:
    feed = Feed(stages=2)
    feed(trajectory("0-rl-0000000", 0))
    (left,) = feed.intake.close_stage(0)
    assert left.fates == ("expired", "expired") and left.trajectory_ids == ("0-rl-0000000/0/1", "")
    feed(trajectory("0-rl-0000001", 1))
    feed(trajectory("0-rl-0000001", 0))
    feed(trajectory("1-rl-0000000", 0, stage_index=1))
    fates = feed.intake.take_fates()
    assert [(f.group_id, f.fates) for f in fates] == [
        ("0-rl-0000000", ("expired", "expired")),
        ("0-rl-0000001", ("expired", "expired")),
    ]
    assert feed.intake.ledger.take()[0] == {"expired": 6}
    assert feed.intake.buffered == 1


def test_what_no_step_has_booked_yet_is_booked_after_a_restart() -> None:
    """A checkpoint waits for the one before it, and records are read meanwhile: its offsets are past them."""
    feed = Feed()
    feed(trajectory("0-rl-0000000", 0))
    for attempt in ("a", "b"):
        feed(trajectory("0-rl-0000001", 0, name=attempt))
    feed(reward(trajectory("0-rl-0000001", 0, name="a")))
    feed.intake.abandon(["0-rl-0000000"])
    state = json.loads(json.dumps(feed.intake.to_state({("t", 0): feed.offset})))
    again = Intake(RUN, [2], state)
    assert again.take_fates() == feed.intake.take_fates() and again.take_fates() == ()
    assert again.ledger.take() == feed.intake.ledger.take() == ({"duplicate": 2, "expired": 2}, 6)
    assert again.ledger.take() == ({}, 0)


def test_abandoned_groups_expire_once_and_complete_ones_are_kept() -> None:
    feed = Feed()
    for sample in range(2):
        feed(trajectory("0-rl-0000001", sample))
        feed(reward(trajectory("0-rl-0000001", sample), float(sample)))
    feed(trajectory("0-rl-0000000", 0))
    names = ["0-rl-0000000", "0-rl-0000001", "0-rl-0000002", "eval-start-sums-00000", "9-rl-0000000"]
    assert [f.group_id for f in feed.intake.abandon(names)] == ["0-rl-0000000", "0-rl-0000002"]
    assert feed.intake.abandon(names) == []
    assert feed.intake.counted(0, terms(version=0))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (trajectory(sample=7, size=8), "sample 7: a group of stage 0 has 2"),
        (trajectory("9-rl-0000000", stage_index=9), "stage 9: the run has stages 0 to 0"),
        (trajectory("1-rl-0000000", stage_index=0), "group 1-rl-0000000 is of another stage than 0"),
    ],
)
def test_what_belongs_to_no_slot_is_invalid_and_opens_no_group(made: Trajectory, words: str) -> None:
    feed = Feed(size=2)
    assert words in feed.intake.misplaced(made)
    assert feed(made) == "invalid" and feed(reward(made)) == "invalid"
    assert feed.intake.ledger.take()[0] == {"invalid": 2} and feed.intake.buffered == 0


@pytest.mark.parametrize(
    ("values", "fates", "silence", "reasons"),
    [
        ((0.0, 0.0), ("zero_signal", "zero_signal"), "all 2 rewards are 0: no signal", ()),
        ((1.0, None), ("zero_signal", "faulted"), "group of one", ("", "it broke")),
        ((None, None), ("faulted", "faulted"), "without a usable attempt", ("it broke", "it broke")),
        ((0.0, 1.0), ("trained", "trained"), "", ()),
    ],
)
def test_the_book_says_why_a_group_was_silent(
    values: tuple[float | None, ...], fates: tuple[str, ...], silence: str, reasons: tuple[str, ...]
) -> None:
    feed = Feed()
    for sample, value in enumerate(values):
        made = trajectory(GROUP, sample)
        word = reward(made, value, verdict="infrastructure", reason="it broke") if value is None else None
        feed(made)
        feed(word or reward(made, value))
    booked = feed.intake.settle(judge(GROUP, feed.intake._open[GROUP].slots, terms(version=0)))
    assert booked.fates == fates and booked.reasons == reasons
    assert silence in booked.silence and bool(silence) == bool(booked.silence)


def test_resolved_groups_are_a_prefix_and_exceptions() -> None:
    groups = ResolvedGroups()
    for index in (0, 1, 2, 5, 4, 3, 8):
        groups.add(f"0-rl-{index:07d}")
    groups.add("0-rl-3")  # another spelling is another group
    groups.add("1-sft-0000000")
    state = groups.to_state()
    assert state == {"streams": {"0-rl": [6, 8], "1-sft": [1]}, "others": ["0-rl-3"]}
    again = ResolvedGroups.from_state(state)
    assert len(again) == 9
    assert all(name in again for name in ("0-rl-0000005", "0-rl-0000008", "0-rl-3", "1-sft-0000000"))
    assert all(name not in again for name in ("0-rl-0000006", "0-rl-0000007", "2-rl-0000000", "x"))


def test_reading_ahead_is_bounded() -> None:
    assert may_read_ahead(3, 4) and not may_read_ahead(4, 4)


def test_the_domain_of_a_group_is_in_its_book() -> None:
    feed = Feed(size=1)
    feed(trajectory(size=1, domain=DomainRef(name="products", version=1, seed=3)))
    (fate,) = feed.intake.close_stage(0)
    assert fate.domain == "products"
