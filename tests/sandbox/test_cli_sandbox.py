"""`temper sandbox run`, as a whole process."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from shared.sandbox.outcome import Outcome, Result
from shared.sandbox.owners import owner_name
from shared.sandbox.settings import SandboxSettings
from temper.cli.sandbox import plain, read_input
from tests.sandbox.machines import MODES

WEAKER = ("--allow-weaker", "rlimits_only")


def temper(*arguments: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "temper", "sandbox", "run", *arguments],
        check=False,
        capture_output=True,
        timeout=120,
        **more,
    )


@pytest.mark.parametrize("mode", MODES)
def test_an_outcome_as_json(mode: str) -> None:
    done = temper(
        "--json", "--cgroups", mode, *WEAKER, "--wall", "0.5", "--memory", "64", "--processes", "8", "--output", "1",
        "--disk", "4", "--cpu", "3", "--", "sh", "-c", r"printf 'a\377'; head -c 2000 /dev/zero >&2; sleep 60",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["outcome"], said["exit_code"], said["cgroups"]) == ("wall_limit", None, mode)
    assert said["stdout"] == "a\\xff" and base64.b64decode(said["stdout_base64"]) == b"a\xff"
    assert said["stderr"] == "\0" * 1024 and said["stderr_truncated"] and not said["stdout_truncated"]
    assert said["usage"]["stderr_bytes"] == 2000 and said["usage"]["wall_s"] >= 0.5


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 1), ("kill -9 $$", 1)])
def test_without_json_the_code_says_whether_it_went_well(script: str, code: int) -> None:
    done = temper("--cgroups", MODES[0], *WEAKER, "--", "sh", "-c", script)
    assert done.returncode == code and done.stdout.startswith((b"exited with", b"signalled by"))


def test_standard_input(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("one\n")
    done = temper("--json", "--cgroups", MODES[0], *WEAKER, "--stdin", str(tmp_path / "given"), "--", "cat")
    assert json.loads(done.stdout)["stdout"] == "one\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--cgroups", "v3"), b"'v3'"),
        (("--cgroups", "none"), b"allow_weaker"),
        (("--wall", "-1"), b"wall_s"),
        (("--root", "nowhere"), b"'nowhere'"),
        (("--stdin", "/nowhere"), b"/nowhere"),
        (("--allow-weaker", "all"), b"'all'"),
        (("--stdin", "/dev/zero"), b"64 MiB"),
        (("--stdin", "/"), b"Is a directory"),
        (("--cpu", "1e300"), b"cpu_s"),
        (("--processes", "99999999999999"), b"processes"),
        (("--memory", "99999999999999"), b"memory_mb"),
    ],
)
def test_what_cannot_be_is_one_line_and_2(arguments: tuple[str, ...], named: bytes) -> None:
    done = temper(*arguments, "--", "true")
    assert done.returncode == 2 and done.stdout == b""
    assert done.stderr.count(b"\n") == 1 and named in done.stderr


def test_a_pipe_that_nobody_writes_to_ends_with_the_wall_limit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = temper("--wall", "0.3", "--stdin", str(tmp_path / "pipe"), "--", "cat")
    assert done.returncode == 2 and b"did not end within 0.3 s" in done.stderr, done.stderr


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    whole = b"x" * (3 << 20)
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(whole,))
    writer.start()
    assert read_input(tmp_path / "pipe", 60) == whole
    writer.join()


def test_what_a_program_prints_steers_no_terminal_and_forges_no_line() -> None:
    printed = "\x1b]0;owned\x07\x1b[2J\r\x85\u202e é\ttab\n--- stderr\nexited with 0\n".encode()
    said = plain(Result(Outcome.EXITED, exit_code=1, stdout=printed, detail="a\x1bb\nc"), "v2").split("\n")
    assert said[0] == "exited with 1: a\\x1bb\\nc"
    assert said[2:] == [
        "--- stdout", r"| \x1b]0;owned\x07\x1b[2J\r\x85\u202e é" + "\ttab", "| --- stderr", "| exited with 0"
    ]  # fmt: skip


@pytest.mark.parametrize("form", [("--json",), ()])
def test_a_full_disk_under_stdout_is_one_line(form: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "temper", "sandbox", "run", *form, *WEAKER, "--", "true"],
            check=False, stdout=full, stderr=subprocess.PIPE, timeout=120,
        )  # fmt: skip
    assert done.returncode not in (0, 2) and done.stderr.count(b"\n") == 1, done.stderr
    assert b"No space left on device" in done.stderr


def test_a_stdout_of_ascii_only() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = temper(*WEAKER, "--", "printf", "\u00e9", env=environment)
    assert done.returncode == 0 and done.stdout.endswith(b"| \\xe9\n"), done


def test_a_fault_of_ours_is_3(tmp_path: Path) -> None:
    idle = tmp_path / "nsjail"
    idle.write_text("#!/bin/sh\nexit 0\n")
    idle.chmod(0o755)
    done = temper("--json", "--nsjail", str(idle), *WEAKER, "--", "true")
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["outcome"] == "infrastructure"


def test_what_is_logged_is_not_in_the_answer() -> None:
    """The start removes what a killed process left, and says so: not on stdout."""
    _, start, namespace = owner_name().split("-")
    left = Path(SandboxSettings().state_folder) / f"keeper-{2**22 + 1}-{start}-{namespace}-left"
    left.mkdir(parents=True)
    done = temper("--json", "--cgroups", MODES[0], *WEAKER, "--", "true")
    assert not left.exists()
    assert json.loads(done.stdout)["outcome"] == "exited"
