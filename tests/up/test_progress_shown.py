"""What a person is told of a run that goes on, and of one that learns nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shared.contracts import Control, DomainResult, DomainReward, Evaluation, Step
from shared.errors import StorageError
from shared.settings import Settings
from temper.up.notes import note
from temper.up.progress import SILENT_STEPS, Progress, evaluation_line

Make = Callable[..., Settings]


def made(number: int, trained: int = 0, mean: float = 0.0, action: str = "continue", stage: int = 0) -> Step:
    return Step(
        run_id="r", step=number, stage="rl", stage_index=stage, stage_step=number, policy_version=number,
        action=action, trained_trajectories=trained,  # type: ignore[arg-type]
        rewards={"arithmetic": DomainReward(mean=mean, passed=0, count=8)},
    )  # fmt: skip


@pytest.fixture
def progress(make_settings: Make) -> Progress:
    rl = {"kind": "rl", "steps": 20, "groups_per_step": 2, "group_size": 2}
    return Progress(make_settings(stages=[rl, rl]))


def told(progress: Progress, *steps: Step) -> list[str]:
    """The lines below those of the steps."""
    return [line.strip() for step in steps for line in (progress.observe(step) or "").splitlines()[1:]]


@pytest.mark.parametrize(("mean", "way"), [(0.0, "an easier difficulty"), (1.0, "a harder difficulty")])
def test_steps_that_teach_nothing_are_told_once_with_what_helps(
    progress: Progress, mean: float, way: str
) -> None:
    lines = told(progress, *[made(number, mean=mean) for number in range(1, 3 * SILENT_STEPS)])
    assert len(lines) == 1 and f"nothing was learnt in {SILENT_STEPS} steps" in lines[0] and way in lines[0]


def test_a_step_that_taught_and_one_that_a_guard_dropped_end_the_silence(progress: Progress) -> None:
    quiet = [made(number) for number in range(1, SILENT_STEPS)]
    between = [made(SILENT_STEPS, trained=1), made(2 * SILENT_STEPS, action="skip_batch")]
    later = [made(number) for number in range(SILENT_STEPS + 1, 2 * SILENT_STEPS)]
    other = [made(number, stage=1) for number in range(2 * SILENT_STEPS + 1, 3 * SILENT_STEPS)]
    assert told(progress, *quiet, between[0], *later, between[1], *other) == []


def test_a_run_that_goes_on_says_where_it_is_and_not_all_that_was(progress: Progress) -> None:
    assert progress.so_far() == []
    for step in range(1, 8):
        progress.observe(made(step, trained=4))
    progress.observe(
        Evaluation(
            run_id="r", name="start", stage_index=0, step=0, first_version=0, last_version=0, domains={}
        )
    )
    assert progress.so_far() == ["goes on after step 7/40", "held-out start: "]
    progress.observe(Control(run_id="r", kind="hold", domain="arithmetic", reason="its checks break"))
    progress.observe(Control(run_id="r", kind="pause", reason="kl 0.9 is above 0.5"))
    held, paused = progress.so_far()[2:]
    folder = progress.settings.run_folder
    assert held == (
        f"domain arithmetic is held back: its checks break (`temper domains lift {folder} arithmetic`)"
    )
    assert paused.startswith("kl 0.9 is above 0.5; look at it, then `temper resume")


def test_no_verdict_says_why() -> None:
    lost = DomainResult(faulted=4, fault="no attempt: the agent 'pythn3' got no answer")
    evaluation = Evaluation(
        run_id="r",
        name="start",
        stage_index=0,
        step=0,
        first_version=0,
        last_version=0,
        domains={"a": lost, "b": DomainResult(faulted=4), "c": DomainResult(passed=1, count=2, faulted=2)},
    )
    assert evaluation_line(evaluation) == (
        f"held-out start: a no verdict ({lost.fault})  b no verdict  c 1/2 = 50%"
    )


def test_a_file_that_cannot_be_written_is_named_with_the_mend(tmp_path: Path) -> None:
    full = Path("/dev/full")
    with pytest.raises(
        StorageError, match=r"/dev/full cannot be written: No space left on device; make room"
    ):
        note(full, "1\n")
    note(tmp_path / "pid", "1\n")
    assert (tmp_path / "pid").read_text() == "1\n"
