"""An attempt in a shape that cannot be laid out or sent is a failure. As a fault of ours it would be retried and never
trained on, which is better than a zero: a policy would learn to make it."""

from __future__ import annotations

from typing import Any

import pytest

from shared.errors import ConfigError
from shared.sandbox.command import inside
from tests.verification.methods.bench import Bench

SHAPELESS: dict[str, dict[str, str]] = {
    "out of the folder": {"../x": ""},
    "from the root": {"/etc/x": ""},
    "no name": {"": ""},
    "a NUL": {"a\0b": ""},
    "no text": {"\ud800": ""},
    "too long a name": {"a" * 300: ""},
    "a file and a folder": {"a": "", "a/b": ""},
    "too deep": {"a/" * 300 + "x": ""},
    "too many": {f"f{number}": "" for number in range(12_000)},
}
SUITE = {
    "hidden": {"test_sums.py": "from sums import double\n\ndef test_double():\n    assert double(4) == 8\n"},
    "named": ["test_sums.py::test_double"],
}
SUMS = {"sums.py": "def double(n):\n    return 2 * n\n"}


@pytest.mark.parametrize("name", SHAPELESS)
def test_files_that_no_folder_holds_are_the_attempts_failure(bench: Bench, name: str) -> None:
    files = SHAPELESS[name]
    program = {"candidate": "print(1)", "cases": [{"expected": "1"}], "files": files}
    suite = {**SUITE, "files": {**SUMS, **files}}
    for judged in bench.judge_all([("program_tests", program), ("pytest_suite", suite)]):
        assert (judged.verdict, judged.reward) == ("failed", 0.0), judged


def test_the_same_attempts_without_those_files_pass(bench: Bench) -> None:
    program = {"candidate": "print(1)", "cases": [{"expected": "1"}], "files": {"a/b": "", "\udcff": ""}}
    suite = {**SUITE, "files": {**SUMS, "a/b": "", "./c": ""}}
    for judged in bench.judge_all([("program_tests", program), ("pytest_suite", suite)]):
        assert judged.verdict == "passed", judged


@pytest.mark.parametrize("entry", [{"path": "x", "base64": "!!"}, {"path": "../x", "base64": ""}], ids=str)
def test_further_files_that_are_none_are_too(bench: Bench, entry: dict[str, Any]) -> None:
    judged = bench.judge("pytest_suite", {**SUITE, "files": SUMS, "binary": [entry]})
    assert (judged.verdict, judged.reward) == ("failed", 0.0), judged


def test_a_second_name_of_a_hidden_file_is_not_written_in_front_of_it(bench: Bench) -> None:
    hidden = {"checks/hid.py": "from sums import double\n\ndef test_double():\n    assert double(4) == 8\n"}
    always = "class A:\n    __eq__ = lambda one, other: True\n\ndef test_double():\n    pass\n\n'''\n"
    files = {"sums.py": "def double(n):\n    return 0\n", "./checks/hid.py": always}
    right = {**SUMS, "./checks/hid.py": "this is no Python"}
    record = {"hidden": hidden, "named": ["checks/hid.py::test_double"]}
    assert bench.judge("pytest_suite", {**record, "files": files}).verdict == "failed"
    assert bench.judge("pytest_suite", {**record, "files": right}).verdict == "passed"


def test_an_output_that_is_too_large_to_be_judged_is_a_failure(bench: Bench) -> None:
    source = "def holds(inputs, output):\n    return True\n"
    record = {"source": source, "inputs": [[1]], "output": "x" * 9_000_000}
    judged = bench.judge("property_check", record)
    assert (judged.verdict, judged.reason) == ("failed", "the output is too large"), judged


def test_a_path_that_is_no_text_is_refused_before_it_is_used() -> None:
    with pytest.raises(ConfigError, match="no text"):
        inside("a/\ud800")
    assert inside("a/\udcff") == "a/\udcff"
