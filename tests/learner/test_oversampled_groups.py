"""A group with more slots than it needs: complete with the first attempts that end, and every slot still booked."""

from __future__ import annotations

from learner_builders import RUN, reward, trajectory

from services.learner.intake.attempts import Terms
from services.learner.intake.intake import Intake
from services.learner.intake.join import Arrival
from services.learner.intake.offsets import Place
from services.learner.objectives.presets import preset
from shared.contracts import Trajectory

GROUP = "0-rl-0000000"
SIZE, ENOUGH = 4, 2
TERMS = Terms(preset("grpo"), vocabulary=32, max_tokens=64, version=0, max_lag=1)


class Fed:
    """An intake, and the offsets of what it was given."""

    def __init__(self) -> None:
        self.intake = Intake(RUN, [SIZE], enough=[ENOUGH])
        self.offset = 0

    def place(self) -> Place:
        self.offset += 1
        return Place("records", 0, self.offset)

    def attempt(self, sample: int, value: float | None = 1.0, *, name: str = "") -> Trajectory:
        """Both halves; `value` None: the verifier could not tell for a reason of ours."""
        made = trajectory(GROUP, sample, name=name, size=SIZE)
        self.intake.trajectory(Arrival(made, self.place()))
        verdict = reward(made, value) if value is not None else reward(made, None, verdict="infrastructure")
        self.intake.reward(Arrival(verdict, self.place()))
        return made

    def fates(self) -> dict[int, str]:
        judged = self.intake.batch(0, TERMS, 1)
        assert judged is not None
        fate = self.intake.settle(judged[0])
        return dict(zip(fate.samples, fate.fates, strict=True))


def test_it_is_complete_with_enough_and_the_rest_is_surplus() -> None:
    fed = Fed()
    fed.attempt(3, 1.0)
    assert fed.intake.batch(0, TERMS, 1) is None
    fed.attempt(1, 0.0)
    assert fed.fates() == {0: "surplus", 1: "trained", 2: "surplus", 3: "trained"}
    assert not fed.intake.buffered


def test_a_fault_is_not_one_of_the_enough() -> None:
    fed = Fed()
    fed.attempt(0, None)
    fed.attempt(1, 1.0)
    assert fed.intake.batch(0, TERMS, 1) is None
    fed.attempt(2, 0.0)
    assert fed.fates() == {0: "faulted", 1: "trained", 2: "trained", 3: "surplus"}


def test_all_slots_with_too_few_attempts_complete_it_too() -> None:
    fed = Fed()
    for sample in range(3):
        fed.attempt(sample, None)
    fed.attempt(3, 1.0)
    judged, _, _ = fed.intake.review(0, TERMS)
    assert [fate.fates for fate in judged] == [("faulted", "faulted", "faulted", "zero_signal")]


def test_one_that_was_cut_short_needs_no_verdict_and_is_no_fault() -> None:
    fed = Fed()
    cut = trajectory(GROUP, 0, size=SIZE, stop_reason="cancelled")
    assert fed.intake.trajectory(Arrival(cut, fed.place())) == "filled"
    fed.attempt(1, 1.0)
    fed.attempt(2, 0.0)
    assert fed.fates()[0] == "surplus"


def test_tokens_of_surplus_attempts_are_booked_once_whenever_they_come() -> None:
    fed = Fed()
    early = trajectory(GROUP, 0, name="early", size=SIZE)
    fed.intake.trajectory(Arrival(early, fed.place()))
    fed.attempt(1, 1.0)
    fed.attempt(2, 0.0)
    assert fed.intake.reward(Arrival(reward(early, 1.0), fed.place())) == "surplus"
    between = trajectory(GROUP, 3, name="between", size=SIZE)
    assert fed.intake.trajectory(Arrival(between, fed.place())) == "surplus"
    fed.fates()
    late = trajectory(GROUP, 3, name="late", size=SIZE)
    fed.intake.trajectory(Arrival(late, fed.place()))
    tokens, _ = fed.intake.ledger.take()
    each = late.sampled_tokens()
    assert tokens == {"trained": 2 * each, "surplus": 3 * each} and fed.intake.duplicates == 0


def test_nothing_of_a_surplus_attempt_is_read_again_after_a_restart() -> None:
    fed = Fed()
    fed.intake.trajectory(Arrival(trajectory(GROUP, 0, name="half", size=SIZE), fed.place()))
    fed.attempt(1, 1.0)
    fed.attempt(2, 0.0)
    state = fed.intake.to_state({("records", 0): fed.offset + 1})
    assert state["chosen"] == {GROUP: [1, 2]}
    assert state["offsets"][0]["needed"] == [2, 3, 4, 5]
