"""Judges a complete group as a whole.

Invariant: every slot of a judged group has exactly one fate. A group with refused attempts trains with the rest
if at least two are left and their rewards differ; without that the rest is `zero_signal`. Of a pair both answers are
trained on or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.learner.guard.bad_data import BadData, check_group
from services.learner.intake.attempts import Refusal, Terms, refuse
from services.learner.intake.join import FilledSlot
from services.learner.objectives.advantages import group_advantages, has_signal
from services.learner.objectives.objective import Objective
from services.learner.objectives.shaping import overlong_penalty
from shared.contracts import Fate


@dataclass(frozen=True, slots=True)
class JudgedGroup:
    """A complete group: what each slot would become if it were resolved now."""

    group_id: str
    slots: Mapping[int, FilledSlot]
    refusals: Mapping[int, Refusal]
    usable: tuple[int, ...]
    """Sample indices that count: valid, fresh, with a verdict."""
    advantages: Mapping[int, float]
    """Of every usable slot, before any normalisation over the batch; all zero without signal."""
    signal: bool
    silence: BadData | None = None
    """Why a group whose attempts are compared has no signal; None where it has one."""
    pair: tuple[int, int] | None = None
    """Of a preference objective: the sample indices of the better and the worse answer."""

    def fates(self, dropped: bool = False) -> dict[int, Fate]:
        """What each slot becomes in a batch; `dropped`: in one whose gradient the guard did not let pass."""
        taught: Fate = "skipped" if dropped else "trained"
        out: dict[int, Fate] = {}
        for index in self.slots:
            if index in self.refusals:
                out[index] = self.refusals[index].fate
            elif not self.signal:
                out[index] = "zero_signal"
            else:
                out[index] = "unpaired" if self.pair and index not in self.pair else taught
        return out

    def reasons(self) -> dict[int, str]:
        """Of every refused attempt, in words."""
        return {index: refusal.reason for index, refusal in self.refusals.items()}

    def usable_slots(self) -> list[FilledSlot]:
        return [self.slots[index] for index in self.usable]

    def counts(self, terms: Terms) -> bool:
        """Whether it takes a place in a batch; otherwise it is resolved at once and another is awaited."""
        if terms.imitation:
            return bool(self.usable)
        if terms.objective.skips_ties:
            return self.signal
        return len(self.usable) >= 2


def judge(group_id: str, slots: Mapping[int, FilledSlot], terms: Terms) -> JudgedGroup:
    ordered = {index: slots[index] for index in sorted(slots)}
    refusals = {
        index: refusal for index, slot in ordered.items() if (refusal := refuse(slot, terms)) is not None
    }
    usable = tuple(index for index in ordered if index not in refusals)
    if terms.imitation:
        return JudgedGroup(
            group_id, ordered, refusals, usable, dict.fromkeys(usable, 1.0), signal=bool(usable)
        )
    if terms.preference:
        return _judge_pair(group_id, ordered, refusals, usable, terms.data)
    kind = terms.objective.advantage
    rewards = [shaped_reward(ordered[index], terms.objective) for index in usable]
    # Dynamic sampling asks what the verifier found: lengths must not make a group of failures worth keeping.
    found = (
        [verified_reward(ordered[index]) for index in usable] if terms.objective.dynamic_sampling else rewards
    )
    signal = has_signal(found, kind)
    values = group_advantages(rewards, kind, terms.objective.advantage_epsilon) * signal
    return JudgedGroup(
        group_id=group_id,
        slots=ordered,
        refusals=refusals,
        usable=usable,
        advantages=dict(zip(usable, values.tolist(), strict=True)),
        signal=signal,
        silence=None if signal else check_group(found),
    )


def _judge_pair(
    group_id: str,
    slots: Mapping[int, FilledSlot],
    refusals: Mapping[int, Refusal],
    usable: tuple[int, ...],
    data: bool,
) -> JudgedGroup:
    """A data set's pair is its first and second slot; of a verified group the best and the worst attempt make one
    (of equal ones the first), and a tie makes none."""
    pair: tuple[int, int] | None = None
    silence: BadData | None = None
    if data:
        pair = (0, 1) if usable == (0, 1) else None
    else:
        rewards = {index: verified_reward(slots[index]) for index in usable}
        silence = check_group(list(rewards.values()))
        if silence is None:
            pair = max(usable, key=rewards.__getitem__), min(usable, key=rewards.__getitem__)
    sides = dict.fromkeys(usable, 0.0)
    if pair:
        sides |= {pair[0]: 1.0, pair[1]: -1.0}
    return JudgedGroup(
        group_id=group_id,
        slots=slots,
        refusals=refusals,
        usable=usable,
        advantages=sides,
        signal=pair is not None,
        silence=silence,
        pair=pair,
    )


def verified_reward(slot: FilledSlot) -> float:
    """The verifier's number."""
    if slot.reward is None or slot.reward.reward is None:
        raise ValueError(f"trajectory {slot.trajectory.trajectory_id} has no reward and was not refused")
    return slot.reward.reward


def shaped_reward(slot: FilledSlot, objective: Objective) -> float:
    """That plus the objective's length penalty."""
    length, limit = slot.trajectory.sampled_tokens(), slot.trajectory.sampling.max_tokens
    return verified_reward(slot) + overlong_penalty(length, limit, objective.overlong_tokens(limit))
