"""Check requests: plain data, the same on both sides of the child's pipe, refused where they are anything else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.verification.faults import CheckerDied
from shared.verification.protocol import MAX_LINE_BYTES, Answer, read_answer_line, write_answer
from shared.verification.request import CheckRequest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
REQUESTS = st.builds(
    CheckRequest,
    method=st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True),
    request=st.dictionaries(st.text(), JSON, max_size=4),
    limits=st.dictionaries(st.sampled_from(["wall_s", "memory_mb"]), st.floats(0.1, 1e6)),
    seconds=st.floats(0, 1e6),
)


@given(REQUESTS)
def test_a_request_comes_back_as_it_went(request: CheckRequest) -> None:
    line = write_answer(Answer(None, cpu_s=0.25, request=request))
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii()
    answer = read_answer_line(line)
    assert answer.request is not None and answer.judgement is None
    assert answer.request.plain() == request.plain()


def test_a_request_that_is_too_large_is_a_fault_with_both_numbers() -> None:
    answer = Answer(None, request=CheckRequest("program_tests", {"source": "x" * MAX_LINE_BYTES}))
    read = read_answer_line(write_answer(answer))
    assert read.request is None and read.judgement is None
    assert f"{MAX_LINE_BYTES:,}" in read.fault and "make it smaller" in read.fault


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"method": "Not a name"}, "must be the name of a check method"),
        ({"method": "../../x"}, "must be the name of a check method"),
        ({"limits": {"wall_s": "long"}}, "wall_s of a m check is 'long'"),
        ({"limits": {"wall_s": float("nan")}}, "must be a finite number"),
        ({"seconds": -1.0}, "must not be negative"),
    ],
)
def test_what_is_no_request_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CheckRequest(**{"method": "m", "request": {}, **fields})


@pytest.mark.parametrize(
    "request_of", [{"a": object()}, {"a": b"bytes"}, {"a": {1, 2}}, {("a",): 1}], ids=repr
)
def test_objects_do_not_travel(request_of: dict[Any, Any]) -> None:
    with pytest.raises(ValueError, match="not plain data"):
        CheckRequest("m", request_of).plain()


@pytest.mark.parametrize(
    "body", [b'{"method":"m"}', b'"m"', b'{"method":"M","request":{},"limits":{},"seconds":0}']
)
def test_a_child_that_writes_another_request_has_broken_its_protocol(body: bytes) -> None:
    line = b'{"cpu_s":0,"last":false,"fault":"","request":' + body + b"}\n"
    with pytest.raises(CheckerDied, match="that is no answer"):
        read_answer_line(line)
