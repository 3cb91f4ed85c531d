"""Every outcome through a fork, and what a check is given and gives back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from shared.errors import ConfigError
from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Outcome
from shared.sandbox.prewarmed.child import MOST_ARGUMENTS, Check
from tests.hostile.test_resources import CASES, PROGRAMS
from tests.sandbox.machines import PATIENCE, Jailer
from tests.sandbox.prewarmed.parts import SMALL, check, nothing_left, printed

HOSTILE = [name for name, case in CASES.items() if case.program and not case.collect]
"""The programs of the resource tests that are Python and leave no artifacts."""
SEEN_ANYWAY = {"a pipe made large"}


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(7)", 7),
        ("import sys; sys.exit('told')", 1),
        ("raise SystemExit(256 + 5)", 5),
        ("1/0", 1),
        ("def broken(:", 1),
        ("import os; os._exit(137)", 137),
        ("import atexit, os; atexit.register(os._exit, 9)", 9),
        ("import threading\nthreading.Thread(target=lambda: __import__('time').sleep(0.1)).start()", 0),
    ],
)
def test_exit_codes_are_those_of_python(jail: Jailer, source: str, code: int) -> None:
    result = check(jail, source)
    assert (result.outcome, result.exit_code, result.signal) == (Outcome.EXITED, code, None), result


@pytest.mark.parametrize("number", [6, 9, 11, 15])
def test_signals(jail: Jailer, number: int) -> None:
    result = check(jail, f"import os; os.kill(os.getpid(), {number})")
    assert (result.outcome, result.signal, result.exit_code) == (Outcome.SIGNALLED, number, None), result


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.slow
def test_hostile_programs_have_the_status_they_have_in_a_jail_of_their_own(jail: Jailer, name: str) -> None:
    case = CASES[name]
    source = (PROGRAMS / f"{case.program}.py").read_text()
    result = check(jail, source, case.limits, arguments=case.arguments)
    weaker = jail.mode == "none" and case.weaker is not None
    assert result.outcome is (case.weaker if weaker else case.outcome), result
    (case.weaker_look if weaker else case.look)(result)
    assert printed(
        jail, "import os; print(os.listdir('/work'), os.listdir('/tmp'), os.listdir('/dev/shm'))"
    ) == ("[] [] []")
    nothing_left(jail)


ORPHANS = """
import os, time

def orphans():
    while True:
        try:
            pid = os.fork()
        except OSError:  # those that ended are not all collected yet
            time.sleep(0.002)
            continue
        if pid == 0:
            try:
                os.fork()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)

for _ in range(3):
    if os.fork() == 0:
        orphans()
time.sleep(0.3)
for _ in range(4):
    if os.fork() == 0:
        held = bytearray(b"x") * (40 << 20)
        time.sleep(25)
        os._exit(0)
time.sleep(25)
"""


def test_orphans_that_end_all_the_time_hide_nothing(jail: Jailer) -> None:
    """Each wakes process 1; where nothing else counts it looks by the clock, however often it is woken."""
    result = check(jail, ORPHANS, replace(SMALL, wall_s=20, processes=500))
    # Half a second; at its wall limit, after which it is looked at once more, where no look came through.
    assert result.outcome is Outcome.MEMORY_LIMIT and result.usage.wall_s < 18 * PATIENCE, result


def test_what_it_is_given(jail: Jailer) -> None:
    source = """
        import sys, os
        print(__name__, __file__, sys.argv, os.getcwd(), os.environ["HOME"], sys.stdin.read(), end="|")
        print("told", file=sys.stderr)
    """
    result = check(jail, source, stdin=b"read this", name="given.py", arguments=("a b", "é"))
    expected = "__main__ given.py ['given.py', 'a b', 'é'] /work /work read this|"
    assert (result.stdout.decode(), result.stderr) == (expected, b"told\n")
    assert (result.usage.stdout_bytes, result.usage.stderr_bytes) == (len(result.stdout), 5)
    assert 0 < result.usage.cpu_s < 5 and result.left_behind == 0
    assert printed(jail, "import sys; print(repr(sys.stdin.read()))") == "''"


def test_a_source_and_an_input_that_no_pipe_holds(jail: Jailer) -> None:
    source = "import sys\nprint(len(sys.stdin.buffer.read()))\n" + "#" * 1_500_000 + "\nprint('end')"
    assert printed(jail, source, stdin=b"x" * 1_000_000) == "1000000\nend"


def test_bytes_stay_bytes_and_sources_may_say_their_encoding(jail: Jailer) -> None:
    result = check(jail, "import sys; sys.stdout.buffer.write(bytes(range(256)))")
    assert result.stdout == bytes(range(256))
    latin = Check("# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))".encode("latin-1"))
    assert jail.wait(jail.sandbox.prewarmed.run(latin, SMALL)).stdout == b"'\\xe9'\n"


def test_a_traceback_shows_the_source_and_not_us(jail: Jailer) -> None:
    result = check(jail, "def inner():\n    raise KeyError('gone')\n\ninner()\n", name="mine.py")
    assert result.stderr.decode() == (
        "Traceback (most recent call last):\n"
        '  File "mine.py", line 4, in <module>\n    inner()\n'
        "  File \"mine.py\", line 2, in inner\n    raise KeyError('gone')\n"
        "KeyError: 'gone'\n"
    )


def test_output_over_the_cap_is_cut_and_counted(jail: Jailer) -> None:
    result = check(jail, "print('x' * 9999)", replace(SMALL, output_kb=4))
    assert result.ok and result.stdout_truncated and not result.stderr_truncated
    assert (len(result.stdout), result.usage.stdout_bytes) == (4096, 10_000)


def test_processes_left_behind_are_counted_and_gone(jail: Jailer) -> None:
    source = """
        import os, time
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(60)
                os._exit(0)
        for _ in range(3):
            os.wait()
    """
    result = check(jail, source)
    assert (result.ok, result.left_behind) == (True, 3), result
    nothing_left(jail)


def test_an_import_ahead_must_be_named_in_the_settings(jail: Jailer) -> None:
    with pytest.raises(ConfigError, match=r"torch.*python_packages"):
        check(jail, "pass", imports=("torch",))
    assert printed(jail, "import sys; print('numpy.random' in sys.modules)", imports=("numpy",)) == "True"
    assert printed(jail, "import sys; print('numpy' in sys.modules)") == "False"
    assert printed(jail, "import numpy; print(numpy.arange(3).sum())") == "3"


def test_arguments_that_are_more_than_a_job_carries() -> None:
    with pytest.raises(ConfigError, match="input"):
        Check("pass", arguments=("x" * MOST_ARGUMENTS,))


def test_limits_of_wall_time_count_from_the_job_not_from_the_preparation(jail: Jailer) -> None:
    async def late() -> float:
        await jail.sandbox.prewarmed.prepare(SMALL)
        await asyncio.sleep(1.0)
        return (await jail.sandbox.prewarmed.run(Check("pass"), SMALL)).usage.wall_s

    assert jail.wait(late()) < 1.0


def test_other_limits_get_other_children(jail: Jailer) -> None:
    source = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], resource.getrlimit(resource.RLIMIT_FSIZE)[0])"
    for number in (20, 30, 20, 40, 50, 60, 70, 20):
        limits = Limits(open_files=number, file_mb=number)
        assert printed(jail, source, limits) == f"{number} {number << 20}"
    nothing_left(jail)


def test_its_streams_can_be_opened_by_name(jail: Jailer) -> None:
    source = (
        "open('/dev/stdout', 'w').write(open('/dev/stdin').read()); open('/dev/stderr', 'w').write('told')"
    )
    result = check(jail, source, stdin=b"read this")
    assert (result.ok, result.stdout, result.stderr) == (True, b"read this", b"told"), result


@pytest.mark.parametrize("channel", [False, True])
def test_the_least_that_a_check_may_have(jail: Jailer, channel: bool) -> None:
    least = Limits(
        wall_s=5,
        cpu_s=1,
        memory_mb=16,
        processes=1,
        output_kb=1,
        file_mb=1,
        disk_mb=1,
        inodes=5,
        open_files=4,
    )
    assert printed(jail, "print('little')", least, channel=channel) == "little"
    source = "import os\ntry: os.fork()\nexcept OSError as error: print(error.errno)\nelse: os._exit(0)"
    assert printed(jail, source, least) == "11"


@pytest.mark.parametrize("source", ["print('\ud800')", "\0", "print(1)\0", b"\xff\xfe", "x = '\r\n"])
def test_sources_that_are_no_programs(jail: Jailer, source: str | bytes) -> None:
    result = jail.wait(jail.sandbox.prewarmed.run(Check(source), SMALL))
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 1) and b"Error" in result.stderr, result
