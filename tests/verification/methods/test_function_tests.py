"""`python_function_tests`: what crosses, what fails, what is our mistake, and what is a fault."""

from __future__ import annotations

import ast
import asyncio
from dataclasses import replace

import pytest

from shared.errors import VerificationFault
from shared.sandbox.faults import SandboxFault
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.settings import SandboxSettings
from shared.verification.detectors.flags import Flag
from shared.verification.faults import CheckTimedOut
from shared.verification.judgement import Judgement
from shared.verification.methods.function_tests import PythonFunctionTests, check
from tests.verification.methods.bench import LIMITS, Bench

SQUARE = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 9\n"


def judged(bench: Bench, source: str, test: str = SQUARE, **more: object) -> Judgement:
    return bench.judge(
        "python_function_tests", {"candidate": source, "entry_point": "f", "test": test, **more}
    )


CROSSING = {
    "generator": ("def f(n):\n    yield from range(n)\n", "assert list(c(5)) == [0, 1, 2, 3, 4]\nassert sum(c(5000)) == 12497500\ng = c(3)\nnext(g)\nassert sum(g) == 3"),
    "endless generator": ("def f():\n    n = 0\n    while True:\n        yield n\n        n += 1\n", "g = c()\nassert [next(g) for _ in range(1000)] == list(range(1000))"),
    "generator that raises late": ("def f(n):\n    for i in range(n):\n        yield i\n    raise ValueError('end')\n", "got = []\ntry:\n    for x in c(200):\n        got.append(x)\nexcept ValueError as error:\n    assert error.args == ('end',)\nassert len(got) == 200"),
    "changes its argument": ("def f(items):\n    items.append(1)\n    items.sort()\n", "items = [3, 2]\nassert c(items) is None\nassert items == [1, 2, 3]"),
    "changes deep inside": ("def f(tree):\n    tree['a'][0].add(5)\n    del tree['b']\n", "inner = {1}\ntree = {'a': [inner], 'b': 2}\nc(tree)\nassert inner == {1, 5} and tree == {'a': [inner]}"),
    "returns its argument": ("def f(items):\n    items.append(1)\n    return items\n", "items = [3, 2]\nassert c(items) is items\nassert items == [3, 2, 1]"),
    "calls back": ("def f(g, n):\n    return sum(g(i) for i in range(n))\n", "seen = []\ndef g(x):\n    seen.append(x)\n    return x * 2\nassert c(g, 4) == 12\nassert seen == [0, 1, 2, 3]"),
    "calls back that raises": ("def f(g):\n    try:\n        return g()\n    except KeyError as error:\n        return error.args[0]\n", "def g():\n    raise KeyError('k')\nassert c(g) == 'k'"),
    "nested calls": ("def f(g, n):\n    return 1 if n == 0 else n * g(g, n - 1)\n", "def g(h, n):\n    return c(g, n)\nassert c(g, 20) == 2432902008176640000"),
    "sort by a key of ours": ("def f(items, key):\n    return sorted(items, key=key)\n", "assert c([3, 1, 2], lambda x: -x) == [3, 2, 1]"),
    "returns a function": ("def f(n):\n    return lambda x: x + n\n", "assert c(3)(4) == 7\nassert c(1)(1) == 2"),
    "a builtin exception": ("def f(n):\n    raise ValueError('bad', n)\n", "try:\n    c(3)\nexcept ValueError as error:\n    assert error.args == ('bad', 3)\nelse:\n    assert False"),
    "an exception of its own": ("class Mine(KeyError):\n    pass\ndef f(n):\n    raise Mine('q')\n", "try:\n    c(3)\nexcept KeyError:\n    pass\nelse:\n    assert False"),
    "async function": ("import asyncio\nasync def f(n):\n    await asyncio.sleep(0)\n    return n\n", "import asyncio\nassert asyncio.run(c(3)) == 3"),
    "an iterator of ours": ("def f(it):\n    return [next(it), next(it)]\n", "g = iter(range(5))\nassert c(g) == [0, 1]\nassert next(g) == 2"),
    "keywords": ("def f(*, a, b=2):\n    return a + b\n", "assert c(a=1) == 3 and c(a=1, b=1) == 2"),
    "numpy": ("import numpy as np\ndef f(n):\n    return np.arange(n)\n", "import numpy\nassert (c(3) == numpy.arange(3)).all() and c(3).shape == (3,)"),
    "numpy in": ("def f(a):\n    a *= 2\n    return a.sum()\n", "import numpy\na = numpy.ones(3)\nassert c(a) == 6\nassert a.tolist() == [2, 2, 2]"),
    "odd values": ("def f(x):\n    return x\n", "for x in (float('inf'), -0.0, 10 ** 5000, '\\ud800', b'\\xff', None, (), {(1, 2): {3}}, 1 + 2j, frozenset({1}), ...):\n    assert c(x) == x and type(c(x)) is type(x)"),
    "by its own name": ("def f(n):\n    return n * n\n", "assert f(2) == 4 and c is f"),
    "a helper of the prelude": ("def f(n):\n    return n * n\n", "assert twice(c(2)) == 8"),
    "a deep list": ("def f(n):\n    d = []\n    for _ in range(n):\n        d = [d]\n    return d\n", "d = c(50000)\nfor _ in range(50000):\n    (d,) = d\nassert d == []"),
}  # fmt: skip


@pytest.mark.parametrize("name", CROSSING)
def test_crosses_as_if_it_were_called_at_home(bench: Bench, name: str) -> None:
    source, body = CROSSING[name]
    test = "def check(c):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    found = judged(bench, source, test, prelude="def twice(x):\n    return 2 * x\n")
    assert found == Judgement.passed(), found


FAILING = {
    "wrong": ("def f(n):\n    return n\n", "an assertion failed at line 2 of the test"),
    "does not compile": ("def f(:\n", "the candidate does not compile"),
    "NUL bytes": ("x = '\0'\n", "the candidate does not compile"),
    "no such function": ("def g(n):\n    return n\n", "the candidate defines no function 'f'"),
    "not a function": ("f = 3\n", "the candidate defines no function 'f'"),
    "raises while loading": ("1 / 0\n", "the candidate raised ZeroDivisionError while loading"),
    "imports what is not there": ("import torch\n", "the candidate raised ModuleNotFoundError while loading"),
    "raises": ("def f(n):\n    return 1 / 0\n", "the candidate raised ZeroDivisionError at line 2 of the test"),
    "an assertion of its own": ("def f(n):\n    assert n > 5\n", "the candidate raised AssertionError at line 2 of the test"),
    "too much recursion": ("def f(n):\n    return f(n)\n", "the candidate raised RecursionError at line 2 of the test"),
    "too large": ("def f(n):\n    return 'x' * (20 << 20)\n", "the candidate returned what is no plain data: over 7 MiB of data"),
    "an object of its own": ("class A:\n    pass\ndef f(n):\n    return [A()]\n", "the candidate returned what is no plain data: A"),
    "an object of its own inside an argument": ("class A:\n    pass\ndef f(n):\n    n.append(A())\n", None),
    "a module": ("import math\ndef f(n):\n    return math\n", "the candidate returned what is no plain data: module"),
    "leaves": ("import os\ndef f(n):\n    os._exit(0)\n", "the candidate ended its own process with exit code 0 in a call"),
    "spins": ("def f(n):\n    while True:\n        pass\n", "the candidate reached its time limit in a call"),
    "spins while loading": ("while True:\n    pass\n", "the candidate reached its time limit while loading"),
    "eats memory": ("def f(n):\n    return bytearray(10 ** 10) or [0] * 10 ** 9\n", None),
    "takes memory by and by": ("def f(n):\n    kept = []\n    while True:\n        kept.append(bytes(10 ** 6))\n", None),
    "floods": ("def f(n):\n    while True:\n        print('x' * 10000)\n", "the candidate reached its output limit in a call"),
    "closes the channel": ("import os\ndef f(n):\n    os.close(3)\n    return n * n\n", None),
    "talks nonsense to us": ("import os\ndef f(n):\n    os.write(3, b'\\xff' * 100)\n    return n * n\n", None),
    "a frame that is no value": ("import os\ndef f(n):\n    os.write(3, b'\\x00\\x00\\x00\\x02R\\xff')\n    return n * n\n", "the candidate's process answered what is no plain data"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILING)
def test_fails_for_its_own_reason(bench: Bench, name: str) -> None:
    source, reason = FAILING[name]
    limits = replace(LIMITS, cpu_s=0.5, wall_s=20.0, memory_mb=128)
    test = SQUARE if "argument" not in name else "def check(c):\n    c([])\n    assert 1\n"
    found = bench.judge(
        "python_function_tests", {"candidate": source, "entry_point": "f", "test": test}, limits
    )
    assert (found.verdict, found.reward) == ("failed", 0.0), found
    assert reason is None or found.reason == reason, found


@pytest.mark.parametrize(
    "test",
    [
        "def check(c):\n    assert undefined(c(3)) == 3\n", "def check(c):\n    assert 1\n", "def check(c:\n", "def other(c):\n    assert c(1)\n",
        "def check(c):\n    c(1)\n", "import nothing_like_this\ndef check(c):\n    assert c(1)\n", "def check(c):\n    yield\n    assert c(1) == 2\n",
        "class A: pass\ndef check(c):\n    assert c(A()) == 1\n", "import sys\ndef check(c):\n    c(1)\n    sys.exit(0)\n    assert 1\n",
    ],
)  # fmt: skip
def test_a_wrong_test_is_nobodys_failure(bench: Bench, test: str) -> None:
    found = judged(bench, "def f(n):\n    return n * n\n", test)
    assert (found.verdict, found.reward) == ("unverifiable", None), found
    assert "mend the test" in found.reason


STUMBLING = {
    "text that does not compile": ("'1 +'", "return eval(output) == 24"),
    "a name that nobody has": ("'nothing'", "return eval(output) == 24"),
    "no document": ("'<a'", "import xml.etree.ElementTree as E\n    return E.fromstring(output).tag == 'a'"),
    "no number": ("'x'", "from decimal import Decimal\n    return Decimal(output) == 24"),
    "a loop without a turn": ("[]", "for last in output: found = last\n    return found == 24"),
    "no such item": ("[1]", "return next(item for item in output if item > 3) == 24"),
    "deeper than one reads": ("[" * 90 + "]" * 90, "return depth(output, 30) == 24"),
}  # fmt: skip
_DEPTH = (
    "def depth(x, left):\n    return 1 + max([depth(y, left - 1) for y in x] or [0]) if left else 1 / 0\n"
)


@pytest.mark.parametrize("name", STUMBLING)
def test_an_answer_that_a_test_stumbles_over_is_a_failure(bench: Bench, name: str) -> None:
    """`unverifiable` is not trained on: it would pay to answer nonsense rather than something wrong."""
    literal, body = STUMBLING[name]
    source = f"{_DEPTH}def holds(inputs, output):\n    {body}\n"
    candidate = {"candidate": f"def f(x):\n    return {literal}\n", "entry_point": "f"}
    test = f"{source}def check(candidate):\n    assert holds(1, candidate(1))\n"
    for found in bench.judge_all(
        [
            ("property_check", {"source": source, "inputs": [[1]], "output": ast.literal_eval(literal)}),
            ("property_check", {"source": source, "inputs": [[1]], **candidate}),
            ("python_function_tests", {"test": test, **candidate}),
        ]
    ):
        assert (found.verdict, found.reward) == ("failed", 0.0), found


def test_a_function_of_the_test_that_is_asked_for_too_much_is_no_mistake_of_the_test(bench: Bench) -> None:
    test = "def check(candidate):\n    assert candidate(lambda n: 'x' * n) == 'xxx'\n"
    assert judged(bench, "def f(g):\n    return g(3)\n", test) == Judgement.passed()
    found = judged(bench, "def f(g):\n    return g(10 ** 7)\n", test)
    assert (found.verdict, found.reward, found.flags) == ("failed", 0.0, ("checker_exhausted",)), found


def test_a_name_that_a_property_lacks_is_nobodys_failure(bench: Bench) -> None:
    source = "def holds(inputs, output):\n    return halper(output)\n"
    for more in ({"output": 1}, {"candidate": "def f(x): return 1", "entry_point": "f"}):
        found = bench.judge("property_check", {"source": source, "inputs": [[1]], **more})
        assert found.verdict == "unverifiable", found


def test_what_the_test_swallows_still_fails(bench: Bench) -> None:
    swallowing = (
        "def check(c):\n    try:\n        c(1)\n    except BaseException:\n        pass\n    assert 1\n"
    )
    for source in (
        "class A: pass\ndef f(n): return A()",
        "def f(n): raise SystemExit",
        "import os\ndef f(n): os._exit(0)",
    ):
        assert judged(bench, source, swallowing).verdict == "failed"


def test_a_value_that_exhausts_the_checker_is_paid_nothing(bench: Bench) -> None:
    limits = replace(LIMITS, memory_mb=96)
    source = "def f(n):\n    row = [0] * 1000\n    return [tuple(row) for _ in range(3000)]\n"
    test = "def check(c):\n    assert [list(x) * 100 for x in c(1)] == 1\n"
    found = bench.judge(
        "python_function_tests", {"candidate": source, "entry_point": "f", "test": test}, limits
    )
    assert found.verdict == "failed" and found.reward == 0.0, found


SHORT = replace(LIMITS, wall_s=2.0, cpu_s=30.0)
HANGING = {
    "a long range": ("def f(n):\n    return 10 ** 12\n", "v = c(1)\ns = 0\nfor q in range(v): s += 1\nassert s == 3"),
    "out of a callback": ("def f(g):\n    return g(10 ** 12)\n", "def g(n):\n    for q in range(n): pass\nc(g)\nassert 1"),
    "after waiting": ("import time\ndef f(n):\n    time.sleep(1.5)\n    return 10 ** 12\n", "for q in range(c(1)): pass\nassert 0"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HANGING)
def test_a_value_that_hangs_the_checker_is_a_failure_and_no_fault(bench: Bench, name: str) -> None:
    source, body = HANGING[name]
    test = "def check(c):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    record = {"candidate": source, "entry_point": "f", "test": test}
    for limits in (SHORT, replace(SHORT, wall_s=30.0, cpu_s=0.5)):
        found = bench.judge("python_function_tests", record, limits)
        assert found.reason == "the test reached its time limit on what the candidate returned", found
        assert found.verdict == "failed" and Flag.CHECKER_EXHAUSTED in found.flags


@pytest.mark.slow
def test_an_output_that_hangs_a_property_is_a_failure(bench: Bench) -> None:
    source = "def holds(i, o):\n    for q in range(o): pass\n    return False\n"
    given = ({"candidate": "def f(x): return 10 ** 12", "entry_point": "f"}, {"output": 10**12})
    for more in given:
        found = bench.judge("property_check", {"source": source, "inputs": [[1]], **more}, SHORT)
        assert (found.verdict, found.flags) == ("failed", ("checker_exhausted",)), found


@pytest.mark.slow
def test_a_test_that_never_ends_by_itself_is_nobodys_failure(bench: Bench) -> None:
    test = "def check(c):\n    while True: pass\n    assert c(1)\n"
    record = {"candidate": "def f(n): return n", "entry_point": "f", "test": test}
    found = bench.judge("python_function_tests", record, replace(SHORT, cpu_s=0.5))
    assert (found.verdict, found.reward) == ("unverifiable", None), found


def test_a_mark_of_byte_order_is_no_part_of_a_program(bench: Bench) -> None:
    found = judged(bench, "\ufeffdef f(n):\n    return n * n\n", "\ufeff" + SQUARE)
    assert found == Judgement.passed(), found


def test_a_constant_is_an_embedded_answer_only_where_it_is_wrong(bench: Bench) -> None:
    constant = "def f(n):\n    return True\n"
    assert judged(bench, constant, "def check(c):\n    assert c(2) is True\n") == Judgement.passed()
    assert judged(bench, constant).flags == (Flag.KNOWN_ANSWERS_EMBEDDED,)
    holds = "def holds(i, o):\n    return o is {}\n"
    for right, flags in ((True, ()), (False, (Flag.KNOWN_ANSWERS_EMBEDDED,))):
        record = {"candidate": constant, "entry_point": "f", "inputs": [[1]], "source": holds.format(right)}
        assert bench.judge("property_check", record).flags == flags


def test_a_function_called_check_is_no_problem(bench: Bench) -> None:
    record = {"candidate": "def check(n):\n    return n * n\n", "entry_point": "check", "test": SQUARE}
    assert bench.judge("python_function_tests", record).verdict == "passed"


def test_a_test_with_a_reference_of_the_same_name(bench: Bench) -> None:
    test = "def f(n):\n    return n * n\ndef check(candidate):\n    assert candidate(7) == f(7)\n"
    assert judged(bench, "def f(n):\n    return n * n\n", test).verdict == "passed"
    assert judged(bench, "def f(n):\n    return n\n", test).verdict == "failed"


def test_a_candidate_cannot_end_the_loop_of_a_test(bench: Bench) -> None:
    test = "def check(c):\n    assert all(map(lambda n: c(n) == n, [1, 2]))\n    for _ in map(c, [1]):\n        assert False\n"
    for source in ("def f(n): raise StopIteration", "def f(n): return next(iter(()))"):
        found = judged(bench, source, test)
        assert found.verdict == "failed" and Flag.LOOP_CUT in found.flags, found


def test_a_test_that_cannot_be_sent_is_ours(bench: Bench) -> None:
    with pytest.raises(VerificationFault, match="cannot be sent"):
        judged(bench, "def f(n): return n", SQUARE, prelude="#" * (8 << 20))
    table = "TABLE = [" + "1, " * 200_000 + "]\n" + SQUARE
    assert judged(bench, "def f(n): return n * n", table).verdict == "passed"


def test_an_exception_of_megabytes_costs_us_nothing(bench: Bench) -> None:
    found = judged(bench, "raise ValueError(*([[] for _ in range(500_000)]))")
    assert (found.verdict, found.reason) == ("failed", "the candidate raised an exception while loading")


def test_nothing_of_one_candidate_reaches_the_next(bench: Bench) -> None:
    judged(
        bench,
        "import builtins, random\nbuiltins.LEAK = 1\nrandom.seed(1)\nopen('/tmp/leak', 'w').write('x')\ndef f(n): return n",
    )
    test = "def check(c):\n    assert c(1) == [False, False]\n"
    probe = "import builtins, os\ndef f(n):\n    return [hasattr(builtins, 'LEAK'), os.path.exists('/tmp/leak')]\n"
    assert judged(bench, probe, test).verdict == "passed"


def test_the_candidate_sees_no_test(bench: Bench) -> None:
    secret = "SECRET_EXPECTED_VALUE_31415"
    source = (
        "import gc, sys, os\ndef f(n):\n    found = []\n    for o in gc.get_objects():\n        if isinstance(o, (dict, list, tuple)) "
        "and len(o) < 1000:\n            found += [x for x in (o.values() if isinstance(o, dict) else o) if type(x) is str]\n"
        "    texts = found + list(os.environ.values()) + [m for m in sys.modules]\n"
        "    return [t for t in texts if ''.join(('SECRET_', 'EXPECTED')) in t]\n"
    )
    test = f"EXPECTED = {secret!r}\ndef check(c):\n    assert c(1) == []\n    assert EXPECTED\n"
    assert judged(bench, source, test).verdict == "passed"


def test_the_same_request_gives_the_same_judgement_under_load(bench: Bench) -> None:
    sources = [
        *[source for source, _ in FAILING.values() if "while" not in source][:12],
        CROSSING["numpy"][0],
    ]
    records = [{"candidate": source, "entry_point": "f", "test": SQUARE} for source in sources]
    rounds = [bench.judge_all([("python_function_tests", record) for record in records]) for _ in range(3)]
    assert rounds[0] == rounds[1] == rounds[2]


def test_a_tester_that_dies_is_a_fault(bench: Bench) -> None:
    for ending in ("os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)", "os.close(3)"):
        test = f"import os, signal\ndef check(c):\n    c(1)\n    {ending}\n    assert c(1) == 1\n"
        with pytest.raises(SandboxFault):
            judged(bench, "def f(n): return n", test)


@pytest.mark.slow
def test_a_slow_test_is_our_time_and_not_the_candidates(bench: Bench) -> None:
    test = "import time\ndef check(c):\n    c(1)\n    time.sleep(60)\n    assert c(1) == 1\n"
    request = {"candidate": "def f(n): return n", "entry_point": "f", "test": test}
    with pytest.raises(CheckTimedOut):
        bench.judge("python_function_tests", request, replace(LIMITS, wall_s=1.0))


def test_a_sandbox_that_goes_away_is_a_fault_and_no_judgement() -> None:
    request = PythonFunctionTests(
        candidate="import time\ndef f(n):\n    time.sleep(30)\n    return n\n", entry_point="f", test=SQUARE
    )

    async def work() -> object:
        async with Sandbox(SandboxSettings()) as sandbox:
            checking = asyncio.ensure_future(check(sandbox, request, LIMITS))
            await asyncio.sleep(1.0)
            await sandbox.close()
            return (await asyncio.gather(checking, return_exceptions=True))[0]

    assert isinstance(asyncio.run(work()), SandboxFault)
