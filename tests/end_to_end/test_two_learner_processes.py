"""A run whose learner is two processes, with sharded weights and adapters: one of them is killed, all come again, the run
ends as any other."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from shared.errors import TemperError
from temper.models.tiny import make_tiny_model
from temper.up.ranks import environment_of, run_ranks
from tests.end_to_end.local_run import LocalRun, audited

RANKS = """
[learner]
processes = 2
[learner.parallel]
shard = true
[learner.lora]
rank = 4
"""


def ranks_of(run: LocalRun) -> list[int]:
    agent = run.pid_of("learner-0")
    return [int(pid) for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]


@pytest.mark.slow
def test_a_killed_rank_ends_all_and_all_come_again(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path / "model" / "tiny")
    with LocalRun(tmp_path, tiny, sft_steps=3, rl_steps=2) as run:
        run.config.write_text(run.config.read_text() + RANKS)
        run.start().wait_for_step(1)
        first = ranks_of(run)
        assert len(first) == 2
        os.kill(first[1], signal.SIGKILL)
        assert run.wait() == 0
        assert any("rank 1 of the learner's 2 processes: was killed by SIGKILL" in line for line in run.lines)
        audited(run)
        manifest = json.loads((run.folder / "objects/checkpoints/small/00000005/state.json").read_text())
        assert manifest["policy"]["weights"]["kind"] == "adapter"
        until = time.monotonic() + 20
        while any(Path(f"/proc/{pid}").exists() for pid in first) and time.monotonic() < until:
            time.sleep(0.1)
        assert not any(Path(f"/proc/{pid}").exists() for pid in first)


def test_the_first_failure_is_what_the_group_says(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TemperError, match=r"rank \d of the learner's 2 processes: .*no such file") as caught:
        run_ranks(["learner", "--config", str(tmp_path / "nothing.toml")], "learner-0", 2, patience_s=20)
    assert caught.value.exit_code == 2  # a configuration that no restart mends
    assert "no such file" in capfd.readouterr().err


def test_ranks_are_told_who_they_are_and_share_the_cores() -> None:
    told = [environment_of(rank, 2, 1234, {"OMP_NUM_THREADS": "3"}) for rank in range(2)]
    assert [(place["RANK"], place["WORLD_SIZE"], place["MASTER_PORT"]) for place in told] == [
        ("0", "2", "1234"),
        ("1", "2", "1234"),
    ]
    assert {place["OMP_NUM_THREADS"] for place in told} == {"3"}
    assert int(environment_of(0, 64, 1, {})["OMP_NUM_THREADS"]) >= 1
