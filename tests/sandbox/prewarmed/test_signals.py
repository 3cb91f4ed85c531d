"""What process 1 of a check, or of a jail, is woken by."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal, sys, time
from shared.sandbox.prewarmed.inside.kernel import hear_of_ends_alone

ENDED = signal.SIGCHLD
signal.pthread_sigmask(signal.SIG_BLOCK, [ENDED])
if sys.argv[1] == "ends alone":
    hear_of_ends_alone()
child = os.fork()
if child == 0:
    while True:
        time.sleep(60)
for _ in range(3):
    os.kill(child, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    os.kill(child, signal.SIGCONT)
    assert os.WIFCONTINUED(os.waitpid(child, os.WCONTINUED)[1])
print(ENDED in signal.sigpending())
os.kill(child, signal.SIGKILL)
print(signal.sigwait([ENDED]) == ENDED, os.WTERMSIG(os.waitpid(child, 0)[1]))
"""


def said(what: str) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, what]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()


def test_children_that_are_stopped_and_go_on_wake_nobody_and_those_that_end_do() -> None:
    assert said("ends alone") == ["False", "True", "9"]
    assert said("all") == ["True", "True", "9"], "the kernel sends a signal for each, where it is not told so"
