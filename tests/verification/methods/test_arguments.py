"""Candidates that change their arguments: honest ones pass, and those that make a test agree with them do not."""

from __future__ import annotations

import pytest

from shared.verification.detectors.flags import Flag
from shared.verification.judgement import Judgement
from shared.verification.methods.in_place import without_states
from tests.verification.methods.bench import Bench


def judged(bench: Bench, source: str, body: str, **more: object) -> Judgement:
    test = "def check(c):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return bench.judge(
        "python_function_tests", {"candidate": source, "entry_point": "f", "test": test, **more}
    )


EMPTYING = {
    "sorted": ("def f(l): l.clear(); return []", "l = [3, 1, 2]\nr = c(l)\nassert r == sorted(l)"),
    "sum": ("def f(n): n.clear(); return 0", "n = [3, 1, 2]\nassert c(n) == sum(n)"),
    "of a dict": ("def f(d): d.clear(); return 0", "d = {1: 2}\nassert c(d) == sum(d.values())"),
    "of bytes": ("def f(b): b.clear(); return 0", "b = bytearray(b'abc')\nassert c(b) == sum(b)"),
    "of a set": ("def f(s): s.clear(); return 0", "s = {1, 2}\nassert c(s) == len(s)"),
    "deep inside": ("def f(t): t[0][1].clear(); return 0", "t = [[1, [2]]]\nassert c(t) == len(t[0][1])"),
    "filled": ("def f(l): l[:] = [7]; return 7", "l = [3, 1, 2]\nassert c(l) == max(l)"),
    "the argument returned": ("def f(l): l.clear(); return l", "l = [3, 1, 2]\nr = c(l)\nassert r == sorted(l)"),
    "nothing returned": ("def f(l): l.clear()", "l = [3, 1, 2]\nassert c(l) == (l[-1] if l else None)"),
    "in a helper": ("def f(l): l.clear(); return 0", "def same(l):\n    r = c(l)\n    return r == sum(l)\nassert same([1, 2])"),
    "in a helper that asserts": ("def f(l): l.clear(); return 0", "def same(g, l):\n    r = g(l)\n    assert r == sum(l)\nsame(c, [1, 2])"),
    "by a table": ("def f(l): l.clear(); return 0", "got = []\nrows = [[1], [2, 3]]\nfor row in rows:\n    got.append(c(row))\nfor one, row in zip(got, rows):\n    assert one == sum(row)"),
    "of an array": ("def f(a): a *= 0; return 0", "import numpy\na = numpy.ones(3)\nassert c(a) == a.sum()"),
    "of a queue": ("def f(q): q.clear(); return 0", "from collections import deque\nq = deque([1, 2])\nassert c(q) == len(q)"),
    "of a default": ("def f(*, d): d.clear(); return 0", "import collections\nd = collections.defaultdict(int, a=2)\nassert c(d=d) == sum(d.values())"),
    "in an unnamed function": ("def f(l): l.clear(); return 0", "same = lambda l: c(l) == sum(l)\nassert same([1, 2])"),
    "by raising": ("def f(l):\n    if not l: return 0\n    l.clear()\n    return 0", "l = [3]\nif c(l) != sum(l):\n    raise ValueError\nassert 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTYING)
def test_a_test_that_agrees_with_what_was_done_to_its_arguments_pays_nothing(bench: Bench, name: str) -> None:
    found = judged(bench, *EMPTYING[name])
    assert found.verdict == "failed" and Flag.ARGUMENT_MUTATED in found.flags, found
    assert found.reason == "the test passes only on arguments that the candidate has changed"


HONEST = {
    "sorts in place": ("def f(l): l.sort()", "l = [3, 1]\nassert c(l) is None\nassert l == [1, 3]"),
    "sorts and returns": ("def f(l): l.sort(); return l", "l = [3, 1]\nassert c(l) == [1, 3]\nassert l == [1, 3]\nassert c(l) is l"),
    "sorts what it need not": ("def f(l): l.sort(); return l", "l = [3, 1]\nr = c(l)\nassert r == sorted(l)"),
    "uses up its copy": ("def f(l):\n    t = 0\n    while l: t += l.pop()\n    return t", "assert c([3, 1]) == 4\nassert c([]) == 0"),
    "counts removals": ("def f(l, x):\n    n = len(l)\n    l[:] = [y for y in l if y != x]\n    return n - len(l)", "l = [1, 2, 1]\nassert c(l, 1) == 2\nassert l == [2] and len(l) == 1"),
    "fills a memo": ("def f(n, memo):\n    memo[n] = n if n < 2 else f(n - 1, memo) + f(n - 2, memo)\n    return memo[n]", "memo = {}\nassert c(10, memo) == 55\nassert c(12, memo) == 144"),
    "by unittest": ("def f(l): l.sort(); return l[0]", "import unittest\nself = unittest.TestCase()\nl = [3, 1]\nself.assertEqual(c(l), 1)\nself.assertEqual(l, [1, 3])"),
    "in a table": ("def f(l): l.reverse()", "for given, wanted in (([1, 2], [2, 1]), ([], [])):\n    data = list(given)\n    c(data)\n    assert data == wanted"),
    "by a wrapper": ("def f(l): l.sort()", "def done(l):\n    c(l)\n    return l\nassert done([2, 1]) == [1, 2]"),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_changes_pass_without_a_flag(bench: Bench, name: str) -> None:
    found = judged(bench, *HONEST[name])
    assert found == Judgement.passed(), found


def test_a_task_that_builds_on_earlier_changes_says_so(bench: Bench) -> None:
    push = "def f(stack, x):\n    stack.append(x)\n    return len(stack)\n"
    body = "stack = []\nassert c(stack, 5) == 1\nassert c(stack, 7) == 2\nassert stack == [5, 7]"
    assert judged(bench, push, body).verdict == "failed"
    assert judged(bench, push, body, in_place=True) == Judgement.passed()


def test_changes_are_seen_without_the_candidates_word(bench: Bench) -> None:
    """A process that answers by itself may leave out that it changed anything: the refilled argument is compared."""
    source = (
        "import os, struct\ndef f(l):\n"
        "    body = b'Rt\\x02P\\x02l\\x00N'\n"
        "    os.write(3, struct.pack('>I', len(body)) + body)\n"
        "    os.read(3, 1 << 16)\n    os._exit(0)\n"
    )
    found = judged(bench, source, "l = [3, 1, 2]\nr = c(l)\nassert r == sorted(l)")
    assert found.verdict == "failed" and Flag.ARGUMENT_MUTATED in found.flags, found


@pytest.mark.parametrize(
    ("line", "stays"),
    [
        ("assert c(x) == 1", True), ("assert r == sorted(x)", True), ("assert x == [1]", False), ("assert r is x", False),
        ("assert r is None", True), ("assert c(x) is True", True), ("assert [c(y) == y for y in x]", True), ("self.assertEqual(x, [1])", False),
        ("self.assertEqual(r, x)", True), ("print(x)", True), ("assert f(x)", True),
    ],
)  # fmt: skip
def test_what_is_left_out(line: str, stays: bool) -> None:
    head = "def check(c):\n    x = [1]\n    r = c(x)\n    "
    kept = without_states(head + line + "\n", ("f",), 1000)
    assert kept.splitlines()[-1].strip() == (line if stays else "pass")


def test_what_cannot_be_read_stays_whole() -> None:
    assert without_states("def check(c:", ("f",), 1000) == "def check(c:"
    long = "def check(c):\n    assert x == 1\n"
    assert without_states(long, ("f",), 10) == long
