"""One outside user a jail, on the whole machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from shared.sandbox.faults import SandboxFault
from shared.sandbox.uids import Uids


def test_numbers_are_lent_to_one_at_a_time(tmp_path: Path) -> None:
    first, second = Uids(tmp_path, 5000, 3), Uids(tmp_path, 5000, 3)
    lent = [first.take(), second.take(), first.take()]
    assert sorted(lent) == [5000, 5001, 5002]
    with pytest.raises(SandboxFault, match="raise sandbox.uids"):
        second.take()
    first.give_back(lent[0])
    assert second.take() == lent[0]
    first.close()
    second.close()


def test_the_longest_unused_number_comes_first(tmp_path: Path) -> None:
    uids = Uids(tmp_path, 5000, 3)
    seen = []
    for _ in range(6):
        uid = uids.take()
        seen.append(uid)
        uids.give_back(uid)
    assert seen == [5000, 5001, 5002, 5000, 5001, 5002]
    uids.close()


def _hold(folder: str, ready: object) -> None:
    uids = Uids(Path(folder), 5000, 1)
    uids.take()
    ready.set()  # type: ignore[attr-defined]
    signal.pause()


def test_a_killed_holder_gives_its_numbers_back(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold, args=(str(tmp_path), ready))
    process.start()
    assert ready.wait(60)
    uids = Uids(tmp_path, 5000, 1)
    with pytest.raises(SandboxFault):
        uids.take()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert uids.take() == 5000
    uids.close()
