"""Honest solutions in odd styles: every style over every problem, each of them right.

A problem is a function `solve` with tests; a style is a way of writing that leaves the answers as they are.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    name: str
    source: str
    """Defines `solve`."""
    test: str
    """Lines of `check`, over `candidate`."""
    scalar: str = ""
    """`int` or `str` where that is what it returns: some styles are for those only."""
    hashable: bool = True
    """Whether its arguments can be a cache's key."""

    def check(self) -> str:
        return f"def check(candidate):\n{textwrap.indent(self.test, '    ')}\n"


PROBLEMS = (
    Problem("gcd", "def solve(a, b):\n    while b:\n        a, b = b, a % b\n    return abs(a)\n",
            "assert candidate(12, 18) == 6\nassert candidate(7, 5) == 1\nassert candidate(0, 9) == 9\nassert isinstance(candidate(4, 2), int)", "int"),
    Problem("primes", "def solve(n):\n    return [p for p in range(2, n + 1) if all(p % q for q in range(2, int(p ** 0.5) + 1))]\n",
            "assert candidate(20) == [2, 3, 5, 7, 11, 13, 17, 19]\nassert candidate(1) == []\nassert sum(candidate(50)) == 328"),
    Problem("reverse words", "def solve(text):\n    return ' '.join(text.split()[::-1])\n",
            "assert candidate('a b  c') == 'c b a'\nassert candidate('') == ''\nassert candidate('ä ö').startswith('ö')", "str"),
    Problem("count letters", "def solve(text):\n    found = {}\n    for c in text:\n        found[c] = found.get(c, 0) + 1\n    return found\n",
            "assert candidate('abca') == {'a': 2, 'b': 1, 'c': 1}\nassert candidate('') == {}\nassert sorted(candidate('zz')) == ['z']"),
    Problem("factorial", "def solve(n):\n    result = 1\n    for k in range(2, n + 1):\n        result *= k\n    return result\n",
            "assert candidate(5) == 120\nassert candidate(0) == 1\nassert candidate(200) % 10 ** 40 == 0\nassert len(str(candidate(300))) == 615", "int"),
    Problem("sort in place", "def solve(items):\n    items.sort()\n    return items\n",
            "data = [3, 1, 2]\nassert candidate(data) == [1, 2, 3]\nassert data == [1, 2, 3]\nassert candidate([]) == []", "", False),
    Problem("transpose", "def solve(rows):\n    return [list(column) for column in zip(*rows)]\n",
            "assert candidate([[1, 2], [3, 4], [5, 6]]) == [[1, 3, 5], [2, 4, 6]]\nassert candidate([]) == []", "", False),
    Problem("mean", "def solve(numbers):\n    return sum(numbers) / len(numbers)\n",
            "assert abs(candidate([1, 2, 4]) - 7 / 3) < 1e-9\ntry:\n    candidate([])\nexcept ZeroDivisionError:\n    pass\nelse:\n    assert False", "", False),
    Problem("distinct", "def solve(items):\n    return set(items)\n",
            "assert candidate((1, 1, 2)) == {1, 2}\nassert candidate(()) == set()\nassert 3 not in candidate((1, 2))"),
    Problem("apply twice", "def solve(function, value):\n    return function(function(value))\n",
            "assert candidate(lambda x: x * 3, 2) == 18\nseen = []\nassert candidate(lambda x: seen.append(x) or x + 1, 5) == 7\nassert seen == [5, 6]", "", False),
    Problem("palindrome", "def solve(text):\n    kept = [c.lower() for c in text if c.isalnum()]\n    return kept == kept[::-1]\n",
            "assert candidate('A man, a plan, a canal: Panama') is True\nassert candidate('ab') is False\nassert not candidate('x y')"),
    Problem("split", "def solve(n):\n    return divmod(n, 7)\n",
            "q, r = candidate(30)\nassert (q, r) == (4, 2)\nassert candidate(6) == (0, 6)\nassert isinstance(candidate(8), tuple)"),
)  # fmt: skip


def _around(head: str, tail: str) -> Callable[[str], str]:
    return lambda source: f"{head}{source}{tail}"


def _wrapped(body: str, head: str = "") -> Callable[[str], str]:
    """The plain solution as `_inner`, and `solve` around it."""
    return lambda source: f"{head}{source}\n_inner = solve\n\n{body}"


STYLES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("plain", lambda source: source),
    ("chatty", _wrapped("def solve(*a):\n    print('PASSED', 'step 1 of 3', a)\n    print('done: 100 %')\n    return _inner(*a)\n", "print('loading, please wait')\n")),
    ("chatty on stderr", _wrapped("import sys\ndef solve(*a):\n    sys.stderr.write('debug: called\\n')\n    return _inner(*a)\n")),
    ("binary output", _wrapped("import sys\ndef solve(*a):\n    sys.stdout.buffer.write(bytes(range(256)))\n    return _inner(*a)\n")),
    ("global state", _wrapped("CALLS = 0\ndef solve(*a):\n    global CALLS\n    CALLS += 1\n    return _inner(*a)\n")),
    ("generator inside", _wrapped("def _one(*a):\n    yield _inner(*a)\ndef solve(*a):\n    return next(_one(*a))\n")),
    ("deep recursion", _wrapped("import sys\nsys.setrecursionlimit(20000)\ndef _down(n):\n    return 0 if n == 0 else 1 + _down(n - 1)\ndef solve(*a):\n    assert _down(9000) == 9000\n    return _inner(*a)\n")),
    ("a class inside", _wrapped("class Solver:\n    def __init__(self):\n        self.calls = []\n    def run(self, *a):\n        self.calls.append(len(a))\n        return _inner(*a)\nsolve = Solver().run\n")),
    ("callable object", _wrapped("class Solver:\n    def __call__(self, *a):\n        return _inner(*a)\nsolve = Solver()\n")),
    ("a class with honest equality", _wrapped("class Box:\n    def __init__(self, v): self.v = v\n    def __eq__(self, other): return isinstance(other, Box) and self.v == other.v\n    def __hash__(self): return 7\ndef solve(*a):\n    assert Box(1) == Box(1) and Box(1) != 1\n    return _inner(*a)\n")),
    ("static method", _wrapped("class Tools:\n    @staticmethod\n    def run(*a):\n        return _inner(*a)\nsolve = Tools.run\n")),
    ("lambda", _wrapped("solve = lambda *a: _inner(*a)\n")),
    ("partial", _wrapped("import functools\nsolve = functools.partial(lambda first, *a: _inner(*a), None)\n")),
    ("async inside", _wrapped("import asyncio\nasync def _later(*a):\n    await asyncio.sleep(0)\n    return _inner(*a)\ndef solve(*a):\n    return asyncio.run(_later(*a))\n")),
    ("decorator", _wrapped("import functools, time\ndef timed(function):\n    @functools.wraps(function)\n    def inner(*a, **k):\n        start = time.perf_counter()\n        try:\n            return function(*a, **k)\n        finally:\n            inner.spent = time.perf_counter() - start\n    return inner\nsolve = timed(_inner)\n")),
    ("big integers", _wrapped("HUGE = 7 ** 9000\ndef solve(*a):\n    assert HUGE % 7 == 0\n    return _inner(*a)\n")),
    ("unicode names", _wrapped("π = 3.14159\ndef größe(*αβγ):\n    return _inner(*αβγ)\nsolve = größe\n")),
    ("star imports", _around("from math import *\nfrom itertools import *\nfrom collections import *\nfrom os.path import *\n", "")),
    ("mutable default", _wrapped("def solve(*a, _memo={}, _log=[]):\n    _log.append(len(a))\n    _memo['calls'] = _memo.get('calls', 0) + 1\n    return _inner(*a)\n")),
    ("a function called exit_code", _wrapped("def exit_code(value):\n    return 0 if value is None else 1\nreward = 1\nresult = 'success'\ndef solve(*a):\n    exit_code(reward)\n    return _inner(*a)\n")),
    ("argv", _wrapped("import sys\nVERBOSE = '-v' in sys.argv[1:]\ndef solve(*a):\n    if VERBOSE:\n        print(sys.argv)\n    return _inner(*a)\n")),
    ("seeded randomness", _wrapped("import random\nrandom.seed(7)\ndef solve(*a):\n    random.random()\n    return _inner(*a)\n")),
    ("threads", _wrapped("import threading\ndef solve(*a):\n    found = []\n    worker = threading.Thread(target=lambda: found.append(1))\n    worker.start()\n    worker.join()\n    return _inner(*a) if found else None\n")),
    ("a thread that stays", _wrapped("import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\ndef solve(*a):\n    return _inner(*a)\n")),
    ("executor", _wrapped("from concurrent.futures import ThreadPoolExecutor\nimport functools\ndef solve(*a):\n    with ThreadPoolExecutor(2) as pool:\n        assert list(pool.map(abs, [-1, 2])) == [1, 2]\n    return _inner(*a)\n")),
    ("processes", _wrapped("import multiprocessing\ndef _double(x):\n    return 2 * x\ndef solve(*a):\n    with multiprocessing.Pool(2) as pool:\n        assert pool.map(_double, [1, 2]) == [2, 4]\n    return _inner(*a)\n")),
    ("temporary files", _wrapped("import tempfile, pathlib, os\ndef solve(*a):\n    with tempfile.TemporaryDirectory() as folder:\n        path = pathlib.Path(folder) / 'note.txt'\n        path.write_text('x')\n        assert path.read_text() == 'x' and os.listdir(folder) == ['note.txt']\n    return _inner(*a)\n")),
    ("a work file", _wrapped("def solve(*a):\n    with open('notes.txt', 'w') as file:\n        file.write('so far so good')\n    return _inner(*a)\n")),
    ("reads its own source", _wrapped("import inspect\nLINES = len(open(__file__).read().splitlines())\ndef solve(*a):\n    assert LINES and 'solve' in inspect.getsource(_inner)\n    return _inner(*a)\n")),
    ("main guard", _around("", "\nif __name__ == '__main__':\n    print(solve(*map(int, input().split())))\n")),
    ("own tests", _around("", "\nimport unittest\nclass TestSolve(unittest.TestCase):\n    def test_it(self):\n        self.assertTrue(callable(solve))\nif __name__ == '__main__':\n    unittest.main()\n")),
    ("docstrings and doctest", _around('"""Solves it.\n\n>>> 1 + 1\n2\n\nSee tests/test_solve.py, and run pytest -q.\n"""\n', "")),
    ("dataclass and enum", _wrapped("import dataclasses, enum\nclass Mode(enum.Enum):\n    FAST = 1\n@dataclasses.dataclass(frozen=True)\nclass Job:\n    mode: Mode\n    size: int = 0\ndef solve(*a):\n    job = Job(Mode.FAST, len(a))\n    return _inner(*a) if job.mode is Mode.FAST else None\n")),
    ("named tuple", _wrapped("from typing import NamedTuple\nclass Step(NamedTuple):\n    name: str\n    count: int\ndef solve(*a):\n    assert Step('x', 1).count == 1\n    return _inner(*a)\n")),
    ("logging", _wrapped("import logging, warnings\nlogging.basicConfig(level=logging.DEBUG)\ndef solve(*a):\n    logging.info('called')\n    warnings.warn('slow')\n    return _inner(*a)\n")),
    ("walrus, match, context", _wrapped("import contextlib\n@contextlib.contextmanager\ndef nothing():\n    yield\ndef solve(*a):\n    with nothing():\n        if (count := len(a)) >= 0:\n            match count:\n                case 99:\n                    return None\n                case _:\n                    return _inner(*a)\n")),
    ("exec of text", _wrapped("exec('def _twice(x):\\n    return x * 2')\ndef solve(*a):\n    assert _twice(2) == eval('2 + 2')\n    return _inner(*a)\n")),
    ("type hints", _around("from __future__ import annotations\nfrom typing import Any, TypeVar, Generic\nT = TypeVar('T')\n", "")),
    ("slow", _wrapped("import time\ndef solve(*a):\n    time.sleep(0.05)\n    return _inner(*a)\n")),
    ("handles exceptions", _wrapped("def solve(*a):\n    try:\n        int('x')\n    except ValueError as error:\n        note = str(error)\n    return _inner(*a)\n")),
    ("a subprocess", _wrapped("import subprocess, sys\nECHO = subprocess.run(['echo', 'hi'], capture_output=True, text=True).stdout\ndef solve(*a):\n    return _inner(*a) if ECHO == 'hi\\n' else None\n")),
    ("borrowed builtins", _wrapped("import builtins\n_print = print\ndef print(*a, **k):\n    return _print('>>', *a, **k)\ndef solve(*a):\n    print(builtins.len(a))\n    return _inner(*a)\n")),
    ("redirected output", _wrapped("import contextlib, io, sys\ndef solve(*a):\n    with contextlib.redirect_stdout(io.StringIO()):\n        print('hidden')\n    return _inner(*a)\n")),
)  # fmt: skip
SCALAR_STYLES: tuple[tuple[str, str, str], ...] = (
    ("numpy integer", "int", "import numpy as np\ndef solve(*a):\n    value = _inner(*a)\n    return np.int64(value) if abs(value) < 2 ** 62 else value\n"),
    ("integer of its own class", "int", "class Count(int):\n    unit = 'pieces'\ndef solve(*a):\n    return Count(_inner(*a))\n"),
    ("text of its own class", "str", "class Name(str):\n    pass\ndef solve(*a):\n    return Name(_inner(*a))\n"),
    ("numpy text", "str", "import numpy as np\ndef solve(*a):\n    return np.str_(_inner(*a))\n"),
)  # fmt: skip
CACHED = _wrapped("import functools\nsolve = functools.lru_cache(maxsize=None)(_inner)\n")


@dataclass(frozen=True, slots=True)
class Honest:
    problem: str
    style: str
    source: str
    test: str

    @property
    def id(self) -> str:
        return f"{self.problem}-{self.style}".replace(" ", "_")


def honest_functions() -> Iterator[Honest]:
    for problem in PROBLEMS:
        for style, change in STYLES:
            yield Honest(problem.name, style, change(problem.source), problem.check())
        for style, kind, body in SCALAR_STYLES:
            if kind == problem.scalar:
                yield Honest(problem.name, style, _wrapped(body)(problem.source), problem.check())
        if problem.hashable:
            yield Honest(problem.name, "cached", CACHED(problem.source), problem.check())


NO_PROGRAM = ("chatty", "binary output", "borrowed builtins", "a thread that stays")
"""Styles whose programs would print more than the answer, or not end."""
ODD_PROGRAMS = (
    ("reads all at once", "import sys\na, b = map(int, sys.stdin.buffer.read().split())\nsys.stdout.write(str(a + b))"),
    ("reads lines", "for line in __import__('fileinput').input():\n    print(sum(map(int, line.split())))"),
    ("a main function", "import sys\ndef main(argv=None):\n    a, b = input().split()\n    print(int(a) + int(b))\n    return 0\nif __name__ == '__main__':\n    sys.exit(main())"),
    ("leaves by exit", "a, b = map(int, input().split())\nprint(a + b)\nexit()"),
    ("exit handlers", "import atexit\natexit.register(lambda: print(total))\ntotal = sum(map(int, input().split()))"),
    ("trailing space", "a, b = map(int, input().split())\nprint(a + b, '')\nprint()"),
    ("stderr", "import sys\nprint('warming up', file=sys.stderr)\nprint(sum(map(int, input().split())))"),
    ("threads", "import threading\ndef work():\n    print(sum(map(int, input().split())))\nt = threading.Thread(target=work)\nt.start()\nt.join()"),
    ("deep recursion", "import sys, threading\nsys.setrecursionlimit(10 ** 6)\nthreading.stack_size(1 << 26)\ndef down(n):\n    return 0 if n == 0 else 1 + down(n - 1)\ndef main():\n    a, b = map(int, input().split())\n    assert down(20000) == 20000\n    print(a + b)\nt = threading.Thread(target=main)\nt.start()\nt.join()"),
    ("a subprocess", "import subprocess\na, b = input().split()\nprint(subprocess.check_output(['sh', '-c', f'echo $(({a} + {b}))']).decode().strip())"),
    ("a work file", "open('in.txt', 'w').write(input())\nprint(sum(map(int, open('in.txt').read().split())))"),
    ("a class and a lambda", "class Adder:\n    add = lambda self, a, b: a + b\nprint(Adder().add(*map(int, input().split())))"),
    ("numpy", "import numpy as np\nprint(np.sum(np.array(input().split(), dtype=np.int64)))"),
    ("end of input", "import sys\ntotal = 0\nwhile True:\n    try:\n        total += sum(map(int, input().split()))\n    except EOFError:\n        break\nprint(total)"),
)  # fmt: skip
