"""`temper judge` as a user runs it: lines in, verdicts out in order, and bad lines that stop nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from shared.contracts.reward import Verdict
from shared.sandbox.limits import Limits
from shared.verification.comparators.declared import TYPES
from shared.verification.methods.registry import DECLARED
from temper.cli.judge import NAMES
from temper.cli.judge import judge as command
from temper.cli.judging import Keys, judge_in_order


def judge(*arguments: str, lines: list[Any]) -> tuple[int, list[Any], str]:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "temper", "judge", *arguments],
        input=text.encode("utf-8", "surrogatepass"), capture_output=True, check=False, timeout=200,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},  # for simulators of the tests' own
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


def test_an_unknown_key_is_named_once_with_the_nearest_field() -> None:
    line = {"id": 1, "simulator": "gridworld", "state": {"map": ["@G"]}, "actions": ["r"], "limits": {}}
    code, found, told = judge(
        "--method", "replay", lines=[{**line, "action": []}, {**line, "action": [], "\u202e": 1}]
    )
    assert code == 0 and [verdict["verdict"] for verdict in found] == ["passed", "passed"]
    assert told.splitlines() == [
        "temper: line 1: key 'action' is no field of method 'replay', and ignored; did you mean 'actions'?",
        "temper: line 2: key '\\u202e' is no field of method 'replay', and ignored; known: simulator, state, actions, "
        "options, limits, id, task_id",
    ]
    many = [{**line, f"{number} of many": 1} for number in range(100)]
    assert len(judge("--method", "replay", lines=many)[2].splitlines()) == 20
    told = judge("--method", "answer", lines=[{"gold": "1", "answer": "1", "absolute": 1}])[2]
    assert "key 'absolute' is no field of method 'answer'" in told


def test_every_missing_field_is_named() -> None:
    found = judge("--method", "replay", lines=[{"options": {"max_actions": "x", "illegal": "no"}}])[1]
    assert "simulator, state, actions: these are missing; options.max_actions: " in found[0]["error"]
    assert found[0]["error"].endswith("(and 1 more)")


def test_help_and_the_page_name_every_field_and_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "judging.md").read_text()
    assert command.__doc__
    for name, method in DECLARED.items():
        section = page.split(f"\n### {name}\n")[1].split("\n### ")[0]
        paragraph = command.__doc__.split(f"\n    {name}: ")[1].split("\n\n")[0]
        options = method.request.model_fields.get("options")
        names = options.annotation.model_fields if options is not None else ()  # type: ignore[union-attr]
        for field in method.request.model_fields:
            assert f"`{field}`" in section and field in paragraph, (name, field)
        assert not [option for option in names if f"`{option}`" not in section]
    for kind in TYPES:
        assert f"`{kind}`" in page.split("\n### answer\n")[1].split("\n### ")[0], kind
    assert not [verdict for verdict in get_args(Verdict) if f"`{verdict}`" not in page]
    assert not [limit for limit in Limits.__dataclass_fields__ if f"`{limit}`" not in page]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_the_page_passes(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "judging.md").read_text()
    section = page.split(f"\n### {name}\n")[1].split("\n### ")[0]
    code, found, told = judge("--method", name, lines=[section.split("```json\n")[1].split("\n```")[0]])
    assert (code, [line["verdict"] for line in found], told) == (0, ["passed"], "")


def test_answers() -> None:
    code, found, _ = judge(
        "--method",
        "answer",
        lines=[{"gold": "1/2", "answer": "0.5"}, {"gold": "5", "answer": "5 or 6"}, {"gold": "5"}],
    )
    assert code == 4
    assert [line.get("equal") for line in found] == [True, False, None]
    assert "line 3" in found[2]["error"]


def test_a_line_that_would_end_or_soil_the_process_stops_nothing() -> None:
    good = {"simulator": "gridworld", "state": {"map": ["@G"]}, "actions": ["r"]}
    mine = "tests.verification.methods.counting"
    names = [
        "sys:exit",
        "os:abort",
        "os:fork",
        "this:s",
        "threading:Thread",
        f"{mine}:Leaving",
        f"{mine}:Loud",
    ]
    lines = [line for name in names for line in ({"simulator": name, "state": "step", "actions": [1]}, good)]
    code, found, told = judge("--method", "replay", lines=lines)
    assert code == 4 and "Traceback" not in told
    assert [line.get("verdict", "error") for line in found] == ["error", "passed"] * 6 + ["passed"] * 2
    assert "SystemExit: 3; mend the domain" in found[10]["error"]
    assert "said by the simulator" in told and "Zen of Python" in told


@pytest.mark.parametrize(
    "fault", [SystemExit(0), RuntimeError("odd\nlines"), MemoryError(), RecursionError()]
)
def test_whatever_a_judge_raises_is_an_answer_to_its_line(
    fault: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    def one(record: Mapping[str, Any]) -> dict[str, Any]:
        if record["id"] == 1:
            raise fault
        return {"verdict": "passed"}

    assert judge_in_order(one, [b'{"id": 0}', b'{"id": 1}', b'{"id": 2}'], Keys("x", ())) == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"] for line in found] == [0, 1, 2]
    assert f"line 2: a fault that nobody foresaw: {type(fault).__name__}" in found[1]["error"]


@pytest.mark.slow
def test_lone_surrogates_in_the_texts_of_a_program() -> None:
    program = r"import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
    texts = ["\ud800", "\udcff", "a\ud800\udcffb"]
    lines: list[Any] = [
        {"candidate": program, "cases": [{"stdin": text, "expected": text}]} for text in texts
    ]
    lines += [{"candidate": program, "cases": [{"expected": text}]} for text in texts]
    lines += [{"argv": ["cat", "x"], "files": {"x": text}, "cases": [{"expected": text}]} for text in texts]
    lines += [{"argv": ["echo", "\ud800"], "cases": [{"expected": "x"}]}]
    code, found, told = judge("--method", "program_tests", lines=lines)
    verdicts = [line.get("verdict", "error") for line in found]
    assert verdicts == ["passed"] * 3 + ["failed"] * 3 + ["passed"] * 3 + ["error"]
    assert code == 4 and "Traceback" not in told


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
