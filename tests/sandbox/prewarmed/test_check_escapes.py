"""Programs that try to get out of a jail, as checks; `tests/hostile` shows that outside of one they do get out."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from shared.sandbox.limits import Limits
from tests.hostile.escapes import ESCAPES, program
from tests.sandbox.machines import Jailer
from tests.sandbox.prewarmed.parts import check, nothing_left

# /proc of a check shows processes and nothing else.
ELSEWHERE = {"/proc/net/dev": "/proc/self/net/dev", "/proc/kallsyms": "/dev/null"}
LIMITS = Limits(wall_s=20, cpu_s=10, processes=20)


@pytest.fixture(scope="module")
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@pytest.mark.parametrize("name", ESCAPES)
def test_it_is_held_as_a_check(
    jail: Jailer, name: str, listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPER_TEST_SECRET", "SECRET")
    source = program(name, listener)
    for path, instead in ELSEWHERE.items():
        source = source.replace(path, instead)
    result = check(jail, source, LIMITS)
    assert result.stdout == b"held\n" and result.ok, result.stdout.decode() + result.stderr.decode()
    nothing_left(jail)
