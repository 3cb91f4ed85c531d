"""What is said to a person of a number and of a fault of the system."""

from __future__ import annotations

import errno
import os

from shared.plain_errors import counted, said


def test_one_is_one() -> None:
    assert [counted(n, "step") for n in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert [counted(n, "entry", "entries") for n in (1, 5)] == ["1 entry", "5 entries"]


def test_the_system_is_quoted_without_its_number() -> None:
    assert (
        said(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "a.toml"))
        == "No such file or directory"
    )
    assert said(OSError("the answer broke off")) == "the answer broke off"
    assert said(TimeoutError()) == "TimeoutError"
    assert said(ValueError("it is no number")) == "it is no number"
