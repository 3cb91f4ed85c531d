"""Programs, properties, queries, bodies and repositories, each in real jails."""

from __future__ import annotations

import base64
import io
import json
import struct
import zipfile
from dataclasses import replace
from typing import Any

import pytest

from shared.errors import VerificationFault
from shared.sandbox.faults import SandboxFault
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.settings import SandboxSettings
from shared.verification.detectors.flags import Flag
from tests.verification.methods.bench import LIMITS, Bench

DOUBLE = [{"stdin": "2\n", "expected": "4\n"}, {"stdin": "5\n", "expected": "10"}]


@pytest.mark.parametrize(
    ("record", "verdict", "reason"),
    [
        ({"candidate": "print(int(input()) * 2)"}, "passed", "2 of 2 cases"),
        ({"candidate": "import sys\nprint(int(sys.stdin.readline()) * 2)\nsys.exit()"}, "passed", "2 of 2 cases"),
        ({"candidate": "import sys\nsys.stderr.write('noise' * 999)\nprint(2 * int(input()), '  ')"}, "passed", "2 of 2 cases"),
        ({"candidate": "print(int(input()) + 2)"}, "failed", "wrong output in case 2"),
        ({"candidate": "print(int(input()) + 2)", "options": {"partial": True}}, "partial", "1 of 2 cases; wrong output in case 2"),
        ({"candidate": "print(int(input()) * 2)\nraise SystemExit(3)"}, "failed", "the program ended with exit code 3 in case 1"),
        ({"candidate": "print(int(input()) * 2)\nraise SystemExit(3)", "options": {"require_exit_zero": False}}, "passed", "2 of 2 cases"),
        ({"candidate": "input()\nwhile True: pass"}, "failed", "the program reached its time limit in case 1"),
        ({"candidate": "input()\nwhile True: print('x' * 1000)"}, "failed", "the program reached its output limit in case 1"),
        ({"candidate": "input()\nprint('x' * 300_000)"}, "failed", "the program's output in case 1 is longer than what is kept"),
        ({"candidate": "def f(:"}, "failed", "the program ended with exit code 1 in case 1"),
        ({"argv": ["sh", "-c", "read n; echo $((n * 2))"]}, "passed", "2 of 2 cases"),
        ({"argv": ["python3", "main.py"], "files": {"main.py": "import part\nprint(part.double(input()))", "part.py": "def double(n): return int(n) * 2"}}, "passed", "2 of 2 cases"),
        ({"argv": ["no-such-program"]}, "failed", "the program ended with exit code 127 in case 1"),
    ],
)  # fmt: skip
def test_programs(bench: Bench, record: dict[str, Any], verdict: str, reason: str) -> None:
    judged = bench.judge("program_tests", {"cases": DOUBLE, **record}, replace(LIMITS, cpu_s=1.0))
    assert (judged.verdict, judged.reason) == (verdict, reason), judged
    assert judged.verdict != "passed" or not judged.flags, judged


def test_each_case_is_a_run_of_its_own(bench: Bench) -> None:
    counting = "import os\nprint(sum(1 for _ in os.scandir('.')))\nopen('seen', 'w').write(input())\n"
    cases = [{"stdin": "a", "expected": "1"}, {"stdin": "b", "expected": "1"}]
    assert bench.judge("program_tests", {"candidate": counting, "cases": cases}).verdict == "passed"


def test_bytes_that_are_no_text_are_compared_as_bytes(bench: Bench) -> None:
    case = {"stdin": "\udcff", "expected": "\udcff\udcfe", "comparator": {"kind": "exact"}}
    source = "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read() + b'\\xfe')"
    assert bench.judge("program_tests", {"candidate": source, "cases": [case]}).verdict == "passed"


PROPERTIES = {
    "permutation": ([[[3, 1, 2]]], [1, 2, 3], [1, 2, 2]),
    "sorted_permutation": ([[[3, 1, 3]]], [1, 3, 3], [1, 3]),
    "unique_in_order": ([[[2, 1, 2]]], [2, 1], [1, 2]),
    "prime_factors": ([[12]], [3, 2, 2], [4, 3]),
    "integer_root": ([[10]], 3, 4),
    "topological_order": ([[["a", "b"], [["b", "a"]]]], ["b", "a"], ["a", "b"]),
    "walk": ([[[["a", "b"], ["b", "c"]], "a", "c"]], ["a", "b", "c"], ["a", "c"]),
    "subset_with_sum": ([[[3, 5, 8], 8]], [3, 5], [4, 4]),
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_named_properties(bench: Bench, name: str) -> None:
    from shared.verification.guest.properties import NAMES

    assert set(PROPERTIES) == set(NAMES)
    inputs, right, wrong = PROPERTIES[name]
    for output, verdict in (
        (right, "passed"),
        (wrong, "failed"),
        (None, "failed"),
        ("x", "failed"),
        ({}, "failed"),
        (True, "failed"),
    ):
        judged = bench.judge("property_check", {"output": output, "inputs": inputs, "property": name})
        assert judged.verdict == verdict, (output, judged)


def test_a_candidate_by_a_property(bench: Bench) -> None:
    record = {"entry_point": "f", "inputs": [[[3, 1]], [[5, 5, 1]]], "property": "sorted_permutation"}
    assert bench.judge("property_check", {"candidate": "f = sorted", **record}).verdict == "passed"
    judged = bench.judge("property_check", {"candidate": "def f(x): return sorted(set(x))", **record})
    assert judged.reason == "the output does not have the property in case 2"
    emptied = bench.judge(
        "property_check", {"candidate": "def f(x):\n    x.clear()\n    return []", **record}
    )
    assert emptied.verdict == "failed"


def test_a_property_of_the_domains_own(bench: Bench) -> None:
    record = {"candidate": "def f(n): return n * 2", "entry_point": "f", "inputs": [[3], [4]]}
    right = "def holds(inputs, output):\n    return output == 2 * inputs[0]\n"
    assert bench.judge("property_check", {**record, "source": right}).verdict == "passed"
    assert bench.judge("property_check", {**record, "source": "def holds(:"}).verdict == "unverifiable"
    assert bench.judge("property_check", {**record, "source": "def other(): pass"}).verdict == "unverifiable"
    truthy = "def holds(inputs, output):\n    return 'yes'\n"
    assert bench.judge("property_check", {**record, "source": truthy}).verdict == "failed"


SETUP = "create table t(a, b); insert into t values (1, 'x'), (2.5, null), (2.5, null), (7, x'ff');"


@pytest.mark.parametrize(
    ("query", "expected", "options", "verdict"),
    [
        ("select a, b from t where a < 3", [[2.5, None], [1, "x"], [2.5, None]], {}, "passed"),
        ("select distinct a, b from t where a < 3", [[2.5, None], [1, "x"], [2.5, None]], {}, "failed"),
        ("select distinct a, b from t where a < 3", [[2.5, None], [1, "x"], [2.5, None]], {"rows": "set"}, "passed"),
        ("select a from t order by a", [[1], [2.5], [2.5], [7]], {"rows": "sequence"}, "passed"),
        ("select a from t order by a desc", [[1], [2.5], [2.5], [7]], {"rows": "sequence"}, "failed"),
        ("select a, b from t", [[1]], {}, "failed"), ("select count(*) from t", [[4]], {}, "passed"), ("select sum(a) / 3 from t", [[4.333333333333333]], {}, "passed"),
        ("select typeof(b) from t where a = 7", [["blob"]], {}, "passed"), ("select b from t where a = 7", [["\xff"]], {}, "failed"),
        ("with recursive c(x) as (select 1 union all select x + 1 from c where x < 10) select max(x) from c, t", [[10]], {}, "passed"),
        ("select nothing from t", [[1]], {}, "failed"), ("select 1; select 2", [[1]], {}, "failed"), ("", [[1]], {}, "failed"), ("select '\0'", [[1]], {}, "failed"),
        ("delete from t", [], {}, "failed"), ("pragma user_version", [[0]], {}, "failed"), ("attach ':memory:' as m", [], {}, "failed"),
        ("create table u(x)", [], {}, "failed"), ("select load_extension('x')", [[1]], {}, "failed"), ("select random() * 0 from t", [[0]] * 4, {}, "failed"),
        ("select * from t", [[1, "x"]], {"max_rows": 3}, "failed"), ("select a as n from t where a = 1", [[1]], {"column_names": True}, "failed"),
    ],
)  # fmt: skip
def test_queries(
    bench: Bench, query: str, expected: list[Any], options: dict[str, Any], verdict: str
) -> None:
    judged = bench.judge(
        "sql_result", {"query": query, "setup": SETUP, "expected": expected, "options": options}
    )
    assert judged.verdict == verdict, judged


def test_a_query_has_a_budget_of_steps(bench: Bench) -> None:
    endless = "with recursive c(x) as (select 1 union all select x + 1 from c) select count(*) from c"
    judged = bench.judge(
        "sql_result", {"query": endless, "setup": SETUP, "expected": [[1]], "options": {"steps": 100_000}}
    )
    assert (judged.verdict, judged.reason, judged.flags) == (
        "failed",
        "the query took over 100000 steps",
        ("limit_reached",),
    )


def test_a_database_that_cannot_be_made_is_ours(bench: Bench) -> None:
    for record in (
        {"setup": "create tabel t(a)", "expected": [[1]]},
        {"setup": SETUP, "reference": "select nope from t"},
    ):
        with pytest.raises(VerificationFault, match="mend the domain"):
            bench.judge("sql_result", {"query": "select a from t", **record})


def test_a_database_by_its_image(bench: Bench) -> None:
    import sqlite3

    made = sqlite3.connect(":memory:")
    made.executescript(SETUP)
    image = base64.b64encode(made.serialize()).decode()
    record = {"query": "select count(*) from t", "database": image, "reference": "select 4"}
    assert bench.judge("sql_result", record).verdict == "passed"


CUBE = {"cube": {"size": [10, 10, 10]}}
RING = {
    "difference": [
        {"cube": {"size": [10, 10, 10], "center": True}},
        {"cylinder": {"height": 20, "radius": 2, "center": True}},
    ]
}
PAIR = {"union": [CUBE, {"translate": [15, 0, 0], "of": CUBE}]}
POINTS = [(x, y, z) for x in (0, 2) for y in (0, 2) for z in (0, 2)]
FACES = [
    (0, 1, 3),
    (0, 3, 2),
    (4, 6, 7),
    (4, 7, 5),
    (0, 4, 5),
    (0, 5, 1),
    (2, 3, 7),
    (2, 7, 6),
    (0, 2, 6),
    (0, 6, 4),
    (1, 5, 7),
    (1, 7, 3),
]


def obj(faces: list[Any] = FACES) -> str:
    lines = [f"v {x} {y} {z}" for x, y, z in POINTS]
    return "\n".join([*lines, *(f"f {a + 1} {b + 1} {c + 1}" for a, b, c in faces)])


def stl() -> str:
    body = b"".join(
        struct.pack("<12fH", 0, 0, 0, *(float(x) for at in face for x in POINTS[at]), 0) for face in FACES
    )
    return base64.b64encode(bytes(80) + struct.pack("<I", len(FACES)) + body).decode()


def three_mf() -> str:
    points = "".join(f'<vertex x="{x}" y="{y}" z="{z}"/>' for x, y, z in POINTS)
    faces = "".join(f'<triangle v1="{a}" v2="{b}" v3="{c}"/>' for a, b, c in FACES)
    model = (
        '<model xmlns="http://schemas.microsoft.com/3dmanufacturing/core/2015/02"><resources><object id="1"><mesh>'
        f"<vertices>{points}</vertices><triangles>{faces}</triangles></mesh></object></resources></model>"
    )
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("3D/3dmodel.model", model)
    return base64.b64encode(held.getvalue()).decode()


@pytest.mark.parametrize(
    ("body", "expected", "verdict", "reason"),
    [
        (CUBE, {"volume": {"value": 1000}, "surface_area": {"value": 600}, "watertight": True, "genus": 0, "bounding_box": {"size": [10, 10, 10], "corner": [0, 0, 0]}}, "passed", "5 of 5 measures"),
        (CUBE, {"volume": {"value": 1001}}, "passed", "1 of 1 measures"), (CUBE, {"volume": {"value": 1001, "relative": 0}}, "failed", "wrong: volume"),
        (RING, {"genus": 1, "parts": 1}, "passed", "2 of 2 measures"), (RING, {"genus": 0}, "failed", "wrong: genus"),
        (PAIR, {"parts": 2, "clearance": 5.0}, "passed", "2 of 2 measures"), (PAIR, {"parts": 2, "clearance": 5.1}, "failed", "wrong: clearance"), (CUBE, {"clearance": 0.1}, "failed", "wrong: clearance"),
        ({"scale": [1, 2, 3], "of": CUBE}, {"bounding_box": {"size": [30, 10, 20], "any_order": True}}, "passed", "1 of 1 measures"),
        ({"extrude": {"points": [[0, 0], [4, 0], [0, 3]], "height": 2}}, {"volume": {"value": 12}, "watertight": True}, "passed", "2 of 2 measures"),
        ({"intersection": [CUBE, {"translate": [99, 0, 0], "of": CUBE}]}, {"genus": 0}, "failed", "the body is empty"),
        ({"blob": {}}, {"genus": 0}, "failed", "the body cannot be read: a node that is no known shape"), ({"sphere": {"radius": -1}}, {"genus": 0}, "failed", "the body cannot be read: a measure that is not positive"),
        ({"sphere": {"radius": 1, "segments": 10**9}}, {"genus": 0}, "failed", "the body cannot be read: segments must be 3 to 512"), ({"cube": {"size": [1e999, 1, 1]}}, {"genus": 0}, "failed", "the body cannot be read: a measure that is no number, or over a billion"),
        ({"union": [CUBE] * 3000}, {"genus": 0}, "failed", "the body is too large: over 2000 nodes, or deeper than 64"),
    ],
)  # fmt: skip
def test_bodies_from_programs(bench: Bench, body: Any, expected: Any, verdict: str, reason: str) -> None:
    judged = bench.judge("geometry", {"format": "csg", "text": json.dumps(body), "expected": expected})
    assert (judged.verdict, judged.reason) == (verdict, reason), judged


@pytest.mark.parametrize(
    "given",
    [
        {"format": "obj", "text": obj()},
        {"format": "stl", "base64": stl()},
        {"format": "3mf", "base64": three_mf()},
    ],
    ids=str,
)
def test_bodies_from_meshes(bench: Bench, given: dict[str, str]) -> None:
    expected = {
        "volume": {"value": 8},
        "watertight": True,
        "genus": 0,
        "bounding_box": {"size": [2, 2, 2]},
        "parts": 1,
    }
    assert bench.judge("geometry", {**given, "expected": expected}).reason == "5 of 5 measures"


@pytest.mark.parametrize(
    ("form", "text", "reason"),
    [
        ("obj", obj(FACES[1:]), "wrong: watertight, volume"), ("obj", obj([(a, c, b) for a, b, c in FACES]), "wrong: volume"), ("obj", "", "the body is empty"),
        ("obj", obj([(0, 1, 99)]), "the body cannot be read: a face of a point that is not there"), ("obj", "v 1e99 0 0\n" * 3 + "f 1 2 3", "the body cannot be read: a point that is not finite, or farther out than a billion"),
        ("stl", "what is this", "the body cannot be read: neither a binary nor a text STL"), ("stl", "solid x\nvertex 0 0 0\n", "the body cannot be read: a text STL with a triangle of fewer than three points"), ("3mf", "PK no", "the body cannot be read: no 3MF archive"),
        ("obj", "f 1 x 2", "the body cannot be read: a face with a corner that is no number"), ("csg", "[" * 100_000, "the body cannot be read: a program that is no JSON"),
    ],
)  # fmt: skip
def test_bodies_that_are_none(bench: Bench, form: str, text: str, reason: str) -> None:
    judged = bench.judge(
        "geometry", {"format": form, "text": text, "expected": {"watertight": True, "volume": {"value": 8}}}
    )
    assert (judged.verdict, judged.reason) == ("failed", reason), judged


def test_a_point_that_is_no_number_is_a_mistake_and_no_forgery(bench: Bench) -> None:
    record = {"format": "obj", "text": "v nan 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n", "expected": {"genus": 0}}
    judged = bench.judge("geometry", record)
    assert (judged.verdict, judged.flags) == ("failed", ()), judged


def test_a_gap_to_a_body_that_must_be_kept_out_of(bench: Bench) -> None:
    record = {"format": "csg", "text": json.dumps(CUBE), "keep_out": {"translate": [12, 0, 0], "of": CUBE}}
    assert bench.judge("geometry", {**record, "expected": {"keep_out_gap": 2.0}}).verdict == "passed"
    assert bench.judge("geometry", {**record, "expected": {"keep_out_gap": 2.1}}).verdict == "failed"
    inside = {**record, "keep_out": {"translate": [5, 0, 0], "of": CUBE}, "expected": {"keep_out_gap": 0.1}}
    assert bench.judge("geometry", inside).verdict == "failed"
    mesh = {
        "format": "obj",
        "text": obj(),
        "keep_out": {"translate": [3, 0, 0], "of": CUBE},
        "expected": {"keep_out_gap": 1.0},
    }
    assert bench.judge("geometry", mesh).verdict == "passed"


def test_parts_of_a_body_are_paid(bench: Bench) -> None:
    record = {
        "format": "csg",
        "text": json.dumps(CUBE),
        "partial": True,
        "expected": {"genus": 0, "volume": {"value": 7}},
    }
    judged = bench.judge("geometry", record)
    assert (judged.verdict, judged.reward, dict(judged.components)) == (
        "partial",
        0.5,
        {"genus": 1.0, "volume": 0.0},
    )


def test_a_root_without_what_a_method_needs_is_ours() -> None:
    import asyncio

    from shared.verification.methods.registry import DECLARED

    sandbox = Sandbox(SandboxSettings(python_packages=()))
    suite = {"files": {}, "hidden": {"t.py": ""}, "named": ["t.py::a"]}
    for name, record in (
        ("geometry", {"format": "csg", "text": "{}", "expected": {"genus": 0}}),
        ("pytest_suite", suite),
    ):
        declared = DECLARED[name]
        with pytest.raises(VerificationFault, match="python_packages"):
            asyncio.run(declared.check(sandbox, declared.read(record), LIMITS))


def test_a_reader_that_leaves_without_a_word_is_a_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shared.verification.methods import jails

    monkeypatch.setattr(jails, "program", lambda name: b"raise SystemExit(0)")
    with pytest.raises(SandboxFault, match="a process of ours ended early"):
        bench.judge("sql_result", {"query": "select 1", "setup": SETUP, "expected": [[1]]})


REPOSITORY = {
    "src/shop/__init__.py": "", "src/shop/cart.py": "def total(prices):\n    raise NotImplementedError\n",
    "tests/conftest.py": "import pytest\n\n@pytest.fixture\ndef prices():\n    return [1, 2, 3]\n", "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-x'\n",
    "tests/helper.py": "VALUE = 6\n",
}  # fmt: skip
HIDDEN = {
    "tests/test_cart.py": (
        "import sys\nimport pytest\nfrom shop.cart import total\nfrom tests_helper import VALUE\n\n\n"
        "def test_fixture(prices):\n    assert total(prices) == VALUE\n\n\n"
        "class TestTotal:\n    @pytest.mark.parametrize('given, expected', [([], 0), ([5], 5)])\n"
        "    def test_table(self, given, expected):\n        assert total(given) == expected\n\n"
        "    def test_raises(self):\n        with pytest.raises(TypeError):\n            total(3)\n\n"
        "    def test_several(self):\n        assert total([1.5, 2.5]) == pytest.approx(4.0)\n        assert total(x for x in [1]) == 1\n"
    ),
    "tests_helper.py": "VALUE = 6\n",
}  # fmt: skip
NAMED = ["tests/test_cart.py::test_fixture", "tests/test_cart.py::TestTotal::test_table", "tests/test_cart.py::TestTotal::test_raises",
         "tests/test_cart.py::TestTotal::test_several", "tests/test_cart.py::TestTotal::test_table[given1-5]"]  # fmt: skip
HONEST = {
    "plain": {"src/shop/cart.py": "def total(prices):\n    return sum(prices)\n"},
    "chatty": {"src/shop/cart.py": "import sys\nprint('PASSED')\ndef total(prices):\n    print('total', file=sys.stderr)\n    return sum(prices)\n"},
    "another file": {"src/shop/cart.py": "from shop.more import total\n", "src/shop/more.py": "import functools\ndef total(prices):\n    return functools.reduce(lambda a, b: a + b, prices, 0)\n"},
    "numpy": {"src/shop/cart.py": "import numpy as np\ndef total(prices):\n    return np.sum(list(prices))\n"},
    "own tests too": {"src/shop/cart.py": "def total(prices):\n    return sum(prices)\n", "tests/test_mine.py": "def test_mine():\n    assert True\n"},
    "a class with honest equality": {"src/shop/cart.py": "class Money(float):\n    def __eq__(self, other): return abs(float(self) - other) < 1e-9 if isinstance(other, (int, float)) else NotImplemented\n    __hash__ = float.__hash__\ndef total(prices):\n    return Money(sum(prices))\n"},
    "threads and files": {"src/shop/cart.py": "import threading, tempfile\ndef total(prices):\n    found = []\n    worker = threading.Thread(target=lambda: found.append(sum(prices)) if not isinstance(prices, int) else None)\n    worker.start()\n    worker.join()\n    with tempfile.TemporaryFile() as file:\n        file.write(b'x')\n    if not found:\n        raise TypeError\n    return found[0]\n"},
    "a new dependency named": {"src/shop/cart.py": "def total(prices):\n    return sum(prices)\n", "pyproject.toml": "[project]\nname = 'shop'\n"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_honest_repositories_pass(bench: Bench, name: str) -> None:
    record = {
        "original": REPOSITORY,
        "files": {**REPOSITORY, **HONEST[name]},
        "hidden": HIDDEN,
        "named": NAMED,
    }
    judged = bench.judge("pytest_suite", record)
    assert (judged.verdict, judged.reason) == ("passed", "5 of 5 tests"), judged


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "tests/test_cart.py::test_fixture failed in its call"),
        ({"src/shop/cart.py": "def total(prices):\n    return sum(list(prices) if prices != 3 else [])\n"}, "tests/test_cart.py::TestTotal::test_raises failed in its call"),
        ({"src/shop/cart.py": "def total(:\n"}, "tests/test_cart.py::test_fixture was not run"),
        ({"src/shop/cart.py": "while True: pass\n"}, "tests/test_cart.py::test_fixture did not end: the tested code reached its time limit while the tests ran"),
    ],
)  # fmt: skip
def test_repositories_that_are_wrong(bench: Bench, changes: dict[str, str], reason: str) -> None:
    record = {"original": REPOSITORY, "files": {**REPOSITORY, **changes}, "hidden": HIDDEN, "named": NAMED}
    judged = bench.judge("pytest_suite", record, replace(LIMITS, cpu_s=3.0))
    assert (judged.verdict, judged.reason) == ("failed", reason), judged


@pytest.mark.slow
def test_a_share_of_the_tests_is_paid_where_that_is_asked_for(bench: Bench) -> None:
    half = {"src/shop/cart.py": "def total(prices):\n    return sum(list(prices) if prices != 3 else [])\n"}
    record = {
        "original": REPOSITORY,
        "files": {**REPOSITORY, **half},
        "hidden": HIDDEN,
        "named": NAMED[:4],
        "options": {"partial": True},
    }
    judged = bench.judge("pytest_suite", record)
    assert (judged.verdict, judged.reward) == ("partial", 0.75), judged


@pytest.mark.slow
def test_files_of_any_size_and_bytes_arrive_whole(bench: Bench) -> None:
    big = "x" * (9 << 20)
    source = "import pathlib\ndef size(name):\n    return len(pathlib.Path(name).read_bytes())\n"
    hidden = {
        "test_a.py": "from a import size\n\ndef test_a():\n    assert size('big.txt') == 9437184\n    assert size('raw') == 256\n    assert size('empty') == 0\n"
    }
    raw = {"path": "raw", "base64": base64.b64encode(bytes(range(256))).decode()}
    record = {
        "files": {"a.py": source, "big.txt": big, "empty": ""},
        "binary": [raw],
        "hidden": hidden,
        "named": ["test_a.py::test_a"],
    }
    assert bench.judge("pytest_suite", record).verdict == "passed"


def test_a_body_or_a_database_that_is_too_large(bench: Bench) -> None:
    body = {"format": "obj", "text": "v 0 0 0\n" * 900_000, "expected": {"genus": 0}}
    assert bench.judge("geometry", body).reason == "the body has over 6 MiB"
    with pytest.raises(VerificationFault, match="cannot be sent"):
        bench.judge("sql_result", {"query": "select 1", "setup": "-" * (8 << 20), "expected": [[1]]})
    wide = "select replace(hex(zeroblob(100000)), '0', 'x') from t, t as u, t as v"
    assert (
        bench.judge("sql_result", {"query": wide, "setup": SETUP, "expected": [[1]]}).reason
        == "the result has over 50000 rows, or too much data"
    )


def test_a_hidden_test_that_skips_itself_has_not_passed(bench: Bench) -> None:
    hidden = {
        "tests/test_a.py": "import pytest\n\n@pytest.mark.skip\ndef test_a():\n    assert False\n\n@pytest.mark.xfail\ndef test_b():\n    assert False\n"
    }
    for name in ("test_a", "test_b", "test_none"):
        judged = bench.judge(
            "pytest_suite", {"files": {}, "hidden": hidden, "named": [f"tests/test_a.py::{name}"]}
        )
        assert judged.verdict == "failed", judged


@pytest.mark.slow
def test_code_that_goes_for_the_runner_is_unpaid_though_it_solves_the_task(bench: Bench) -> None:
    source = "from _pytest import reports\nreports.TestReport.passed = True\ndef total(prices):\n    return sum(prices)\n"
    record = {
        "original": REPOSITORY,
        "files": {**REPOSITORY, "src/shop/cart.py": source},
        "hidden": HIDDEN,
        "named": NAMED,
    }
    judged = bench.judge("pytest_suite", record)
    assert judged.verdict == "failed" and Flag.TEST_RUNNER_PATCHED in judged.flags
