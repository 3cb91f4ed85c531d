"""One check never sees another: not the one before it, not the one beside it, not the server they come from."""

from __future__ import annotations

import asyncio

import pytest

from shared.sandbox.outcome import Result
from shared.sandbox.prewarmed.child import Check
from tests.sandbox.machines import Jailer
from tests.sandbox.prewarmed.parts import SMALL, check, nothing_left, printed

TRACES = {
    "files": (
        "import os\nfor p in ('/work', '/tmp', '/dev/shm'): open(p + '/trace', 'w').write('x')",
        "import os\nprint(sum((os.listdir(p) for p in ('/work', '/tmp', '/dev/shm')), []))",
        "[]",
    ),
    "files at once": (
        "import os, time\nopen('/work/trace', 'w').write('x'); time.sleep(0.4)",
        "import os, time\ntime.sleep(0.2); print(os.listdir('/work'))",
        "[]",
    ),
    "system v memory": (
        "import ctypes, time\nassert ctypes.CDLL(None).shmget(77, 4096, 0o1666) >= 0; time.sleep(0.4)",
        "import ctypes, time\ntime.sleep(0.2); print(ctypes.CDLL(None).shmget(77, 4096, 0o666))",
        "-1",
    ),
    "abstract sockets": (
        "import socket, time\ns = socket.socket(socket.AF_UNIX); s.bind('\\0trace'); s.listen(); time.sleep(0.4)",
        "import socket, time\ntime.sleep(0.2); print(socket.socket(socket.AF_UNIX).connect_ex('\\0trace'))",
        "111",
    ),
    "ports": (
        "import socket, time\ns = socket.socket(); s.bind(('0.0.0.0', 7777)); s.listen(); time.sleep(0.4)",
        "import socket, time\ntime.sleep(0.2); s = socket.socket(); print(s.bind(('0.0.0.0', 7777)))",
        "None",
    ),
    "posix shared memory": (
        "from multiprocessing import resource_tracker, shared_memory\nresource_tracker.register = print\n"
        "shared_memory.SharedMemory('trace', create=True, size=10)",
        "from multiprocessing import shared_memory\ntry: shared_memory.SharedMemory('trace')\nexcept FileNotFoundError: print('none')",
        "none",
    ),
    "modules": (
        "import math, json, builtins\nmath.pi = 3; json.dumps = None; builtins.len = None",
        "import math, json\nprint(round(math.pi, 2), json.dumps(1), len('ab'))",
        "3.14 1 2",
    ),
    "environment and folder": (
        "import os, sys\nos.environ['TRACE'] = 'x'; os.chdir('/'); os.umask(0); sys.path.append('trace')",
        "import os, sys\nprint(os.environ.get('TRACE'), os.getcwd(), os.umask(0), 'trace' in sys.path)",
        "None /work 18 False",
    ),
    "names of the main module": (
        "trace = 1",
        "import __main__\nprint(hasattr(__main__, 'trace'))",
        "False",
    ),
    "processes": (
        "import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(0.4)",
        "import os, time\ntime.sleep(0.2); print([p for p in os.listdir('/proc') if p.isdigit()])",
        "['2']",
    ),
}


@pytest.mark.parametrize("what", TRACES)
def test_nothing_of_one_is_seen_by_the_next_nor_beside_it(jail: Jailer, what: str) -> None:
    leaves, looks, expected = TRACES[what]

    async def both() -> list[Result]:
        run = jail.sandbox.prewarmed.run
        first = asyncio.ensure_future(run(Check(leaves), SMALL))
        beside = await run(Check(looks), SMALL)
        return [await first, beside, await run(Check(looks), SMALL)]

    left, beside, after = jail.wait(both())
    assert left.ok, left
    assert (beside.stdout.decode().strip(), after.stdout.decode().strip()) == (expected, expected), (
        beside,
        after,
    )


def test_keyrings_are_refused(jail: Jailer) -> None:
    source = """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.syscall(248, b"user", b"trace", b"x", 1, -4)
        print(done, ctypes.get_errno())
    """
    assert printed(jail, source) == "-1 1"


def test_random_state_is_new_in_each(jail: Jailer) -> None:
    source = (
        "import random, uuid, os; print(random.random(), random.getrandbits(64), uuid.uuid4(), os.urandom(4))"
    )
    seen = [printed(jail, source) for _ in range(6)]
    assert len(set(seen)) == len(seen)
    numpy = "import numpy; print(numpy.random.rand(), numpy.random.randint(1 << 30))"
    seen = [printed(jail, numpy, imports=("numpy",)) for _ in range(6)]
    assert len(set(seen)) == len(seen)


def test_the_order_of_sets_is_the_same_in_each(jail: Jailer) -> None:
    """PYTHONHASHSEED is 0: a check that prints a set of words is repeatable, also with another server."""
    source = "print(hash('temper'), {str(n) for n in range(50)})"
    first = printed(jail, source)
    nothing_left(jail)
    assert printed(jail, source) == first


def test_what_a_check_is(jail: Jailer) -> None:
    """Its user, its rights, its descriptors and its place, in one look."""
    source = """
        import os
        status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
        print(os.getpid(), os.getppid(), os.getsid(0), status["NoNewPrivs"], status["Seccomp"], status["Groups"].strip())
        print({status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")})
        print(1000 <= os.getuid() < 1064, len(set(os.getresuid() + os.getresgid())), os.uname().nodename)
        fds = os.listdir("/proc/self/fd")
        print(sorted(fds)[:3], len(fds))
        print({line.rpartition(":")[2] for line in open("/proc/self/cgroup").read().split()} - {"/"})
        print([name for name in os.listdir("/proc") if name not in ("2", "self", "thread-self")])
        print([path for path in ("/proc/1", "/proc/sys", "/proc/kallsyms", "/proc/net") if os.path.exists(path)])
        print(sorted(os.environ))
    """
    assert printed(jail, source).splitlines() == [
        "2 1 2 1 2 ",
        "{'0000000000000000'}",
        "True 1 jail",
        "['0', '1', '2'] 4",  # the fourth is that of the listing
        "set()",
        "[]",
        "[]",
        "['HOME', 'LANG', 'PATH', 'PYTHONPATH']",
    ]


def test_nothing_of_ours_can_be_imported(jail: Jailer) -> None:
    source = """
        import importlib, sys
        print([name for name in sys.modules if name.partition(".")[0] in ("shared", "services", "temper")])
        for name in ("shared", "shared.domains", "services", "temper"):
            try:
                print(importlib.import_module(name))
            except ModuleNotFoundError:
                pass
    """
    assert printed(jail, source) == "[]"


def test_users_are_apart_while_checks_run(jail: Jailer) -> None:
    """Limits and keyrings of a user are the kernel's own books: two checks never share one."""

    async def many() -> list[Result]:
        run = jail.sandbox.prewarmed.run
        source = Check("import os, time; print(os.getuid()); time.sleep(0.5)")
        return list(await asyncio.gather(*(run(source, SMALL) for _ in range(8))))

    results = jail.wait(many())
    assert len({result.stdout for result in results}) == 8 and all(result.ok for result in results)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("libc.unshare(0x10000000)", 1),
        ("libc.unshare(0x20000)", 1),
        ("libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)", 1),
        ("libc.umount2(b'/proc', 2)", 1),
        ("libc.setns(0, 0)", 1),
        ("libc.ptrace(16, 1, 0, 0)", 1),
        ("libc.process_vm_readv(1, None, 0, None, 0, 0)", 1),
        ("libc.setuid(0)", 1),
        ("libc.setuid(1001 if __import__('os').getuid() != 1001 else 1002)", 1),
        ("libc.sethostname(b'x', 1)", 1),
        ("libc.kill(1, 9)", 1),
        ("libc.kill(1, 19)", 1),
        ("libc.kill(-1, 9)", 3),
        ("libc.open(b'/proc/1/mem', 2)", 2),
        ("libc.open(b'/usr/trace', 65, 0o644)", 30),
        ("libc.open(b'/python/trace', 65, 0o644)", 30),
        ("libc.open(b'/trace', 65, 0o644)", 30),
        ("libc.open(b'/proc/self/oom_score_adj', 1)", 30),
    ],
)
def test_what_is_refused(jail: Jailer, call: str, error: int) -> None:
    source = f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nprint({call}, ctypes.get_errno())"
    assert printed(jail, source) == f"-1 {error}"


def test_every_descriptor_is_written_to_and_closed(jail: Jailer) -> None:
    """Whatever is open: process 1 still tells how it ended, and the next check is well."""
    source = """
        import os
        for number in range(3, 4096):
            for step in (lambda n: os.write(n, b'{"status": 0, "left": 0, "full": "", "cpu_s": 0}'), os.close):
                try:
                    step(number)
                    print("open", number)
                except OSError:
                    pass
        os.close(0)
        os.kill(os.getpid(), 9)
    """
    result = check(jail, source)
    assert (result.signal, result.stdout) == (9, b""), result
    assert printed(jail, "print('well')") == "well"


def test_killing_all_kills_only_itself(jail: Jailer) -> None:
    result = check(jail, "import os, signal; os.kill(0, signal.SIGKILL)")
    assert result.signal == 9
    source = "import os\nif os.fork() == 0:\n    os.kill(-1, 9)\n    os._exit(0)\nos.wait(); print('spared')"
    assert check(jail, source).signal == 9
    assert printed(jail, "print('well')") == "well"
