"""Programs that hide what they use from the process table: found in every way of counting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shared.sandbox.command import Command
from shared.sandbox.limits import MIB, Limits
from shared.sandbox.outcome import Outcome
from tests.sandbox.machines import MODES, Jailer, jailer

LIMITS = Limits(wall_s=30, cpu_s=1, memory_mb=128, disk_mb=16)

UNWAITED = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
until = time.monotonic() + 25
while time.monotonic() < until:
    if os.fork() == 0:
        while time.process_time() < 0.02:
            pass
        os._exit(0)
    time.sleep(0.02)
"""
MEMFDS = """
import os, time
held = [os.memfd_create(str(number)) for number in range(10)]
for descriptor in held:
    for _ in range(40):
        os.write(descriptor, bytes(1 << 20))
time.sleep(20)
"""
SEGMENTS = """
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
for _ in range(10):
    number = libc.shmget(0, 40 << 20, 0o1600)
    assert number >= 0, ctypes.get_errno()
    place = libc.shmat(number, None, 0)
    ctypes.memset(place, 1, 40 << 20)
    libc.shmdt(ctypes.c_void_p(place))
time.sleep(20)
"""
THREAD_OF_ITS_OWN_TABLE = """
import ctypes, os, threading, time
def hide():
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x400) == 0, ctypes.get_errno()
    held = [os.memfd_create(str(number)) for number in range(10)]
    for descriptor in held:
        for _ in range(40):
            os.write(descriptor, bytes(1 << 20))
    time.sleep(20)
threading.Thread(target=hide).start()
"""


@pytest.fixture(scope="module", params=MODES)
def jails(request: pytest.FixtureRequest) -> Iterator[Jailer]:
    with jailer(request.param) as made:
        yield made


def python(script: str) -> Command:
    return Command(("python3", "-I", "-c", script))


def test_children_that_nobody_waits_for_use_cpu(jails: Jailer) -> None:
    result = jails.run(python(UNWAITED), LIMITS)
    assert result.outcome is Outcome.CPU_LIMIT, result
    assert result.usage.cpu_s >= 1


@pytest.mark.parametrize("script", [MEMFDS, SEGMENTS], ids=["memfds", "system_v"])
def test_memory_without_a_mapping_is_memory(jails: Jailer, script: str) -> None:
    result = jails.run(python(script), LIMITS)
    assert result.outcome is Outcome.MEMORY_LIMIT, result


def test_below_the_limit_it_is_counted_and_counted_once(jails: Jailer) -> None:
    """A memfd of 40 MiB that is mapped, open twice and shared with a child."""
    script = """
import mmap, os, time
descriptor = os.memfd_create("m")
os.truncate(descriptor, 40 << 20)
again, mapped = os.dup(descriptor), mmap.mmap(descriptor, 40 << 20)
for place in range(0, 40 << 20, 4096):
    mapped[place] = 1
child = os.fork()
if child == 0:
    sum(mapped[place] for place in range(0, 40 << 20, 4096))
    time.sleep(0.5)
    os._exit(0)
os.waitpid(child, 0)
"""
    result = jails.run(python(script), LIMITS)
    assert result.ok, result
    assert 40 * MIB <= result.usage.memory_peak_bytes < 75 * MIB


def test_a_thread_hides_no_descriptors(jails: Jailer) -> None:
    result = jails.run(python(THREAD_OF_ITS_OWN_TABLE), LIMITS)
    if result.outcome is not Outcome.MEMORY_LIMIT:
        # Where the filter refuses the call there is nothing to hide with.
        assert result.outcome is Outcome.EXITED and b"AssertionError" in result.stderr, result


def test_a_process_that_is_not_dumpable_is_counted(jails: Jailer) -> None:
    """Its files in /proc are root's then, as nsjail's are."""
    script = "import ctypes, time; assert ctypes.CDLL(None).prctl(4, 0) == 0; time.sleep(0.5)"
    result = jails.run(python(script), LIMITS)
    assert result.ok and result.usage.processes_peak >= 1, result
