"""A whole run through four real processes: to its end, through kills, interrupted and resumed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from temper.models.tiny import make_tiny_model
from tests.end_to_end.local_run import LocalRun, audited, temper

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def summary_of(run: LocalRun) -> dict[str, object]:
    return dict(json.loads((run.folder / "summary.json").read_text()))


def alive(pid: int) -> bool:
    """A process that has ended and that nobody has reaped yet is not alive."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    return "State:\tZ" not in status


def test_a_run_to_its_end_with_two_rollouts(tiny: Path, tmp_path: Path) -> None:
    with LocalRun(tmp_path, tiny, rollouts=2) as run:
        assert run.start().wait() == 0
        summary = summary_of(run)
        assert summary["steps"] == 10
        assert [e["name"] for e in summary["evaluations"]] == ["start", "0-sft-end", "1-rl-end"]  # type: ignore[attr-defined, index]
        assert (run.folder / "reward.png").stat().st_size > 1000
        audited(run)
        assert temper("report", str(run.folder)).returncode == 0
        assert temper("checkpoint", "verify", str(run.folder)).returncode == 0
        # The last step again, from the topics of a broker that is started for it: the same bits.
        replayed = temper("replay", str(run.folder), "--from", "9", OMP_NUM_THREADS="1")
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
        refused = temper("up", str(run.folder.parent / "small-replay-9" / "run.toml"))
        assert refused.returncode == 2 and "is a replay" in refused.stderr
        again = temper("up", str(run.config))
        assert again.returncode == 0 and "complete" in again.stderr
        assert not list(run.folder.glob("logs/*.pid"))


@pytest.mark.parametrize("victim", ["scheduler-0", "rollout-0", "verifier-0", "broker"])
def test_kill_9_in_the_middle_loses_nothing(victim: str, tiny: Path, tmp_path: Path) -> None:
    oversample = 2 if victim in ("rollout-0", "learner-0") else 0
    with LocalRun(tmp_path, tiny, oversample=oversample) as run:
        run.start().wait_for_step(6)
        run.kill(victim)
        assert run.wait() == 0
        assert any(f"{victim} was killed by SIGKILL" in line for line in run.lines)
        summary = summary_of(run)
        assert summary["steps"] == 10
        fates = summary["stages"][1]["slots"]["by_fate"]  # type: ignore[index]
        assert ("surplus" in fates) == bool(oversample)
        audited(run)


def test_interrupted_it_resumes(tiny: Path, tmp_path: Path) -> None:
    with LocalRun(tmp_path, tiny) as run:
        run.start().wait_for_step(5)
        pids = [run.pid_of(n) for n in ("scheduler-0", "rollout-0", "verifier-0", "learner-0", "broker")]
        run.interrupt()
        assert run.wait() == 130
        assert not any(alive(pid) for pid in pids)
        audited(run)
        run.lines.clear()
        assert run.start().wait() == 0
        assert summary_of(run)["steps"] == 10
        audited(run)


def test_a_killed_supervisor_leaves_nothing_running(tiny: Path, tmp_path: Path) -> None:
    with LocalRun(tmp_path, tiny) as run:
        run.start().wait_for_step(2)
        pids = [run.pid_of(n) for n in ("scheduler-0", "rollout-0", "verifier-0", "learner-0", "broker")]
        run.kill_supervisor()
        deadline = time.monotonic() + 60
        while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not any(alive(pid) for pid in pids)


def test_kill_9_in_the_middle_of_a_checkpoint_loses_nothing(tiny: Path, tmp_path: Path) -> None:
    """The learner's death; its other moments are in tests/learner/test_kill_points.py."""
    with LocalRun(tmp_path, tiny) as run:
        mark = tmp_path / "killed"
        assert run.start(TEMPER_KILL_POINT=f"mid_checkpoint:6:{mark}").wait() == 0
        assert mark.exists() and any("learner-0 was killed by SIGKILL" in line for line in run.lines)
        assert summary_of(run)["steps"] == 10
        audited(run)
