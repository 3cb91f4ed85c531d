"""`temper judge --method answer`: lines in, lines out, and exit codes that mean something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PAIRS = (Path(__file__).parent / "math_pairs.jsonl").read_text()


def run(lines: str | bytes, *options: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    data = lines if isinstance(lines, bytes) else lines.encode("utf-8", "surrogatepass")
    return subprocess.run(
        [sys.executable, "-P", "-m", "temper", "judge", "--method", "answer", *options],
        input=data, capture_output=True, timeout=120, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


def judged(record: dict[str, Any], *options: str) -> dict[str, Any]:
    done = run(json.dumps(record) + "\n", *options)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_every_collected_pair_comes_out_right_in_order() -> None:
    done = run(PAIRS)
    assert done.returncode == 0, done.stderr
    wanted = [json.loads(line) for line in PAIRS.splitlines()]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["equal"] for line in found] == [pair["equal"] for pair in wanted]
    assert all(set(line) == {"equal", "verdict", "reason"} for line in found)


def test_the_same_input_gives_the_same_bytes_under_any_hash_seed() -> None:
    assert run(PAIRS, PYTHONHASHSEED="1").stdout == run(PAIRS, PYTHONHASHSEED="2").stdout


def test_a_line_may_declare_its_type_and_options_hold_for_all() -> None:
    record = {"gold": "1, 2", "answer": "2, 1"}
    assert judged(record)["equal"]
    assert not judged({**record, "type": "tuple"})["equal"]
    assert not judged(record, "--options", '{"type": "tuple"}')["equal"]
    assert judged({**record, "type": "set"}, "--options", '{"type": "tuple"}')["equal"]
    near = {"gold": "3.14", "answer": "3.15"}
    assert judged(near, "--options", '{"type": "decimal", "absolute": "0.01"}')["equal"]
    assert judged({**near, "type": {"type": "decimal", "absolute": 0.01}})["equal"]
    assert not judged({"gold": "5", "answer": r"so \boxed{5}"}, "--options", '{"extraction": "whole"}')[
        "equal"
    ]


def test_numbers_and_objects_need_no_quotes() -> None:
    assert judged({"gold": 5, "answer": "5.0"})["equal"]
    fields = {"type": "json", "partial": True, "fields": {"a": "integer", "b": "text"}}
    found = judged({"gold": {"a": 1, "b": "x"}, "answer": '{"a": 1, "b": "y"}', "type": fields})
    assert (found["equal"], found["verdict"], found["reward"]) == (False, "partial", 0.5)


def test_an_unreadable_gold_answer_is_a_fault() -> None:
    found = judged({"gold": r"\frac{1}{0}", "answer": "1"})
    assert (found["equal"], found["verdict"]) == (False, "infrastructure")


def failed(done: subprocess.CompletedProcess[bytes], words: str) -> None:
    said = done.stderr.decode()
    assert done.returncode == 2, said
    assert said.count("\n") == 1 and words in said, said


GOOD = json.dumps({"gold": "5", "answer": "5"})
BAD_LINES: tuple[tuple[bytes, str], ...] = (
    (b"{", "it is no JSON"),
    (b'{"gold": "5"}', "it has no 'answer'"),
    (b"[1]", "it is no JSON object"),
    (b'{"gold": "\xff", "answer": ""}', "it is no JSON"),
    (b"[" * 100_000, "it is no JSON"),
    (b'{"gold": "5", "answer": "5", "type": "integr"}', "did you mean 'integer'"),
    (b'{"gold": "5", "answer": "5", "type": 5}', "type is 5"),
)


def test_a_line_that_cannot_be_judged_says_why_in_its_place_and_stops_nothing() -> None:
    lines = [line for bad, _ in BAD_LINES for line in (GOOD.encode(), bad)]
    done = run(b"\n".join(lines) + b"\n\n" + GOOD.encode())
    assert done.returncode == 4 and f"{len(BAD_LINES)} lines could not be judged" in done.stderr.decode()
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 2 * len(BAD_LINES) + 1
    assert all(verdict["equal"] for verdict in found[::2])
    for number, ((_, words), verdict) in enumerate(zip(BAD_LINES, found[1::2], strict=True), start=1):
        assert f"line {2 * number}: " in verdict["error"] and words in verdict["error"]


def test_options_that_fit_no_type_end_the_command() -> None:
    failed(run(GOOD, "--options", "{"), "--options is '{'")
    failed(run(GOOD, "--options", "[]"), "give a JSON object")
    failed(run(GOOD, "--options", '{"type": "decimal", "digits": 3}'), "has no option 'digits'")


def test_hostile_text_comes_back_as_ascii() -> None:
    done = run('{"gold": "5", "answer": "\\ud800\\u202e5"}\n\n')
    assert done.returncode == 0 and done.stdout.isascii()
    assert json.loads(done.stdout)["verdict"] == "failed"
