"""What a restart cannot mend ends `temper up` with the process's own line and code, and leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from temper.models.tiny import make_tiny_model
from tests.end_to_end.local_run import TEMPER, LocalRun
from tests.end_to_end.test_bad_input import closed_port, config
from tests.model_folders import small_folder

pytestmark = pytest.mark.slow


def test_a_device_that_is_not_there_ends_the_run(tmp_path: Path) -> None:
    absent = f"cuda:{torch.cuda.device_count()}"
    with LocalRun(tmp_path, make_tiny_model(tmp_path / "tiny")) as run:
        assert run.start(TEMPER_LEARNER__DEVICE=absent).wait() == 3
        said = [line for line in run.lines if line.startswith("temper: ")]
        assert len(said) == 1 and f"learner-0: learner.device is '{absent}'" in said[0], run.lines
        assert "it ended 3 times in this way" in said[0]
        assert not any("killed" in line for line in run.lines), "services drain while their broker is there"
        assert not list(run.folder.glob("logs/*.pid"))


def test_an_interrupt_is_heard_while_a_broker_is_waited_for(tmp_path: Path) -> None:
    small_folder(tmp_path / "no-model")
    bus = f'[bus]\nbootstrap_servers = "127.0.0.1:{closed_port()}"\n'
    path = config(
        tmp_path, lambda toml: toml.replace("[bus]\nconnect_timeout_s = 1.5", f"{bus}connect_timeout_s = 250")
    )
    process = subprocess.Popen([*TEMPER, "up", path], stderr=subprocess.PIPE, text=True, env={**os.environ})
    try:
        while not (tmp_path / "bad" / "run.toml").exists():
            assert process.poll() is None
        # It waits: there is no process of its own yet, and that is no reason to go on without a broker.
        time.sleep(2)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in said, said
