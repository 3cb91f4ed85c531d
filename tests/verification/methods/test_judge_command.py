"""`temper judge` as a user runs it: lines in, verdicts out in order, and bad lines that stop nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.verification.methods.registry import DECLARED
from temper.cli.judge import NAMES


def judge(*arguments: str, lines: list[Any]) -> tuple[int, list[Any], str]:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "temper", "judge", *arguments],
        input=text.encode("utf-8", "surrogatepass"), capture_output=True, check=False, timeout=200,
    )  # fmt: skip
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def test_every_method_is_named() -> None:
    assert set(NAMES) == {"answer", *DECLARED}


@pytest.mark.slow
def test_functions_are_judged_in_order_and_bad_lines_say_so_in_their_place() -> None:
    test = "def check(candidate):\n    assert candidate(2) == 4\n"
    lines = [
        {"id": "a", "candidate": "import time\ntime.sleep(1)\ndef f(n): return n * n", "entry_point": "f", "test": test},
        "no json at all",
        {"candidate": "def f(n): return n", "entry_point": "f", "test": test, "label": "of the data set"},
        {"candidate": "def f(n): return n"},
        "",
        {"id": 9, "candidate": "while True: pass", "entry_point": "f", "test": test, "limits": {"cpu_s": 0.5}},
        [1, 2],
        {"candidate": "def f(n): return n * n", "entry_point": "f", "test": test, "limits": {"cpu": 1}},
    ]  # fmt: skip
    code, found, told = judge("--method", "python_function_tests", lines=lines)
    assert code == 4
    assert [line.get("verdict", "error") for line in found] == [
        "passed",
        "error",
        "failed",
        "error",
        "failed",
        "error",
        "error",
    ]
    assert found[0] == {"id": "a", "verdict": "passed", "reward": 1.0, "reason": "", "flags": []}
    assert found[4]["id"] == 9 and found[4]["reason"] == "the candidate reached its time limit while loading"
    assert found[3]["error"].startswith("line 4: no request for method 'python_function_tests': entry_point")
    assert "line 8: limit 'cpu' is unknown" in found[6]["error"]
    assert "4 lines could not be judged" in told and "Traceback" not in told


@pytest.mark.slow
def test_options_by_text_and_by_file(tmp_path: Path) -> None:
    line = {
        "candidate": "print(input())",
        "cases": [{"stdin": "a", "expected": "a"}, {"stdin": "b", "expected": "c"}],
    }
    options = {"partial": True, "limits": {"wall_s": 20}}
    file = tmp_path / "options.json"
    file.write_text(json.dumps(options))
    for given in (json.dumps(options), str(file)):
        code, found, _ = judge("--method", "program_tests", "--options", given, lines=[line])
        assert code == 0 and found[0]["verdict"] == "partial" and found[0]["reward"] == 0.5


def test_answers() -> None:
    code, found, _ = judge(
        "--method",
        "answer",
        lines=[{"gold": "1/2", "answer": "0.5"}, {"gold": "5", "answer": "5 or 6"}, {"gold": "5"}],
    )
    assert code == 4
    assert [line.get("equal") for line in found] == [True, False, None]
    assert "line 3" in found[2]["error"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--method", "nope"), "method 'nope' is unknown; known: answer, python_function_tests"), (("--method", "replay", "--options", "[1]"), "give a JSON object"),
        (("--method", "replay", "--options", '{"max": 1}'), "option 'max' of method 'replay' is unknown"), (("--method", "replay", "--options", "{nope"), "--options is '{nope'"),
        (("--method", "replay", "--options", '{"max_actions": "many"}'), "max_actions"), (("--method", "sql_result", "--options", '{"limits": {"wall_s": -1}}'), "wall_s"),
    ],
)  # fmt: skip
def test_options_that_are_none_end_it_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    code, found, told = judge(*arguments, lines=[])
    assert (code, found) == (2, []) and words in told and len(told.strip().splitlines()) == 1
