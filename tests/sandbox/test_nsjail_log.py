"""What nsjail said; the lines were taken from its 3.x binary."""

from __future__ import annotations

import pytest

from shared.sandbox.nsjail_log import Ending, ending

HEAD = b"""[I][2026-11-30T06:39:41+0000] Mode: STANDALONE_ONCE
[I][2026-11-30T06:39:41+0000] Executing '/bin/sh' for '[STANDALONE MODE]'
"""
FAILED = b"""[F][2026-11-30T06:39:41+0000][1] runChild():506 Launching child process failed
[W][2026-11-30T06:39:41+0000][4] runChild():526 Received error message from the child process before it has been executed
[E][2026-11-30T06:39:41+0000][4] standaloneMode():274 Couldn't launch the child process
[I][2026-11-30T06:39:41+0000] pid=5 ([STANDALONE MODE]) exited with status: 255, (PIDs left: 0)
"""


def end(text: str) -> bytes:
    return HEAD + f"[I][2026-11-30T06:39:41+0000] pid=9 ([STANDALONE MODE]) {text}, (PIDs left: 0)\n".encode()


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (end("exited with status: 0"), Ending("exited", 0)),
        (end("exited with status: 137"), Ending("exited", 137)),
        (end("terminated with signal: SIGKILL (9)"), Ending("signalled", 9)),
        (end("terminated with signal: SIGSEGV (11)"), Ending("signalled", 11)),
        (HEAD, Ending("unknown")),
        (b"", Ending("unknown")),
        (
            HEAD
            + b"[E][2026-11-30T06:39:42+0000][1] newProc():232 execve('/nope') failed: No such file or directory\n"
            + FAILED,
            Ending("no_program", 127, "execve('/nope') failed: No such file or directory"),
        ),
        (
            HEAD
            + b"[E][2026-11-30T06:39:42+0000][1] newProc():232 execve('/etc') failed: Permission denied\n"
            + FAILED,
            Ending("no_program", 126, "execve('/etc') failed: Permission denied"),
        ),
        (
            HEAD
            + b"[E][2026-11-30T06:39:41+0000][1] initNsInternal():361 chdir('/nowhere'): No such file or directory\n"
            + FAILED,
            Ending("no_program", 127, "chdir('/nowhere'): No such file or directory"),
        ),
        (
            HEAD
            + b"[E][2026-11-30T06:39:41+0000][1] buildMountTree():328 Failed to mount mandatory point: '/work'\n"
            + FAILED,
            Ending("not_started", 0, "Failed to mount mandatory point: '/work'"),
        ),
    ],
)
def test_endings(log: bytes, expected: Ending) -> None:
    assert ending(log) == expected


def test_a_program_cannot_speak_for_nsjail_by_its_name() -> None:
    name = "x) exited with status: 0, (PIDs left: 0)"
    log = f"[I][2026] Executing '/work/pid=1 ({name}' for '[STANDALONE MODE]'\n".encode() + end(
        "exited with status: 3"
    )
    assert ending(log) == Ending("exited", 3)


def test_bytes_that_are_no_text() -> None:
    assert ending(b"\xff\xfe\n" + end("exited with status: 1")) == Ending("exited", 1)
