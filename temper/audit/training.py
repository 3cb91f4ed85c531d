"""What was trained was worth it.

Invariant checked: step numbers run without a gap; what a step trained exists, is of the slot, was judged and is no
fault, no evaluation, and no older than max_lag allows; a step's own counts agree with what it lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shared.contracts import FAULTS, Step
from temper.audit.facts import AttemptFact, RewardFact, RunFacts, SlotKey
from temper.audit.finding import Finding, slot_name
from temper.audit.slots import Booking, SlotBook


def check_steps(lineage: Sequence[Step]) -> Iterator[Finding]:
    """Numbers, versions and counts of the surviving steps."""
    before: Step | None = None
    for step in lineage:
        name = f"step {step.step}"
        if before is None and step.step > 1:
            yield Finding(
                "steps not contiguous", name, f"it is the first one found; {step.step - 1} are missing"
            )
        elif before is not None and step.step != before.step + 1:
            yield Finding("steps not contiguous", name, f"the step before it is {before.step}")
        if before is not None and step.policy_version <= before.policy_version:
            yield Finding(
                "version repeated", name, f"made version {step.policy_version} after {before.policy_version}"
            )
        trained = len(step.slots())
        if step.trained_trajectories != trained:
            yield Finding(
                "ledger", name, f"counts {step.trained_trajectories} trained trajectories and lists {trained}"
            )
        before = step


def check_training(facts: RunFacts, book: SlotBook) -> Iterator[Finding]:
    """Every trained slot."""
    attempts = {attempt.trajectory_id: attempt for attempt in facts.attempts}
    first_reward: dict[str, RewardFact] = {}
    for reward in facts.rewards:
        first_reward.setdefault(reward.trajectory_id, reward)
    for slot, bookings in sorted(book.bookings.items()):
        for booking in bookings:
            if booking.fate != "trained":
                continue
            attempt = attempts.get(booking.trajectory_id)
            yield from _check_one(slot, booking, attempt, first_reward, facts.max_lag)


def _check_one(
    slot: SlotKey,
    booking: Booking,
    attempt: AttemptFact | None,
    rewards: dict[str, RewardFact],
    max_lag: int,
) -> Iterator[Finding]:
    name, where = slot_name(slot), f"trained in step {booking.step.step}"
    if attempt is None:
        text = f"{where} from trajectory {booking.trajectory_id or '(none named)'}, which is in no topic"
        yield Finding("trained without a trajectory", name, text)
        return
    if attempt.slot != slot:
        yield Finding(
            "wrong slot",
            name,
            f"{where} from trajectory {attempt.trajectory_id} of {slot_name(attempt.slot)}",
        )
    if attempt.purpose != "train":
        yield Finding("trained on an evaluation", name, f"{where}; its purpose is {attempt.purpose}")
    yield from _check_verdict(name, where, attempt, rewards.get(attempt.trajectory_id))
    lag = booking.step.policy_version - 1 - attempt.oldest_version
    if attempt.oldest_version >= 0 and lag > max_lag:
        text = f"{where} with a token of version {attempt.oldest_version}: {lag} behind, max_lag is {max_lag}"
        yield Finding("too old", name, text)


def _check_verdict(
    name: str, where: str, attempt: AttemptFact, reward: RewardFact | None
) -> Iterator[Finding]:
    if attempt.infrastructure:
        yield Finding("trained on a fault", name, f"{where}; no attempt was made (infrastructure)")
    elif reward is None:
        if not attempt.demonstration:
            yield Finding("trained without a reward", name, f"{where}; trajectory {attempt.trajectory_id}")
    elif reward.verdict in FAULTS:
        yield Finding("trained on a fault", name, f"{where}; its verdict is {reward.verdict}")
    elif reward.reward is None:
        yield Finding("trained without a reward", name, f"{where}; its verdict is {reward.verdict}")
