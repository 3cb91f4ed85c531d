"""The lines between a verifier and its children: what goes in comes out, and rubbish is a fault."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contracts.task import DomainRef
from shared.verification.faults import CheckerDied
from shared.verification.judgement import Attempt, Judgement
from shared.verification.protocol import (
    Answer,
    Hello,
    Question,
    Ready,
    outward,
    read_answer_line,
    read_hello,
    read_question,
    read_ready,
    write_answer,
    write_hello,
    write_question,
    write_ready,
)

ANY_TEXT = st.text(st.characters(), max_size=60)


@given(ANY_TEXT, st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=3), st.floats(0.01, 100))
def test_a_question_comes_out_as_it_went_in(answer: str, artifacts: dict[str, str], budget: float) -> None:
    reference = DomainRef(name="x", version=3, seed=1 << 40, difficulty={"a": [1, "b"]}, instance_digest="d")
    question = Question(reference, Attempt(answer, artifacts), budget)
    line = write_question(question)
    assert line.isascii() and line.count(b"\n") == 1
    assert read_question(line) == question


@given(ANY_TEXT, st.floats(0, 1), st.dictionaries(st.text(max_size=5), st.floats(-5, 5), max_size=3))
def test_an_answer_comes_out_as_valid_text(reason: str, reward: float, components: dict[str, float]) -> None:
    answer = Answer(Judgement.partial(reward, reason, components), cpu_s=0.25, last=True)
    line = write_answer(answer)
    assert line.isascii() and line.count(b"\n") == 1
    back = read_answer_line(line)
    assert back.judgement is not None and back.judgement.reward == reward
    assert back.judgement.reason == outward(reason)
    back.judgement.reason.encode("utf-8")
    assert (back.cpu_s, back.last, back.fault) == (0.25, True, "")


def test_greetings_come_out_as_they_went_in() -> None:
    assert read_hello(write_hello(Hello(("a", "b:C"), 5))) == Hello(("a", "b:C"), 5)
    assert read_ready(write_ready(Ready("broken", ("x",)))) == Ready("broken", ("x",))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\n",
        b"null\n",
        b"[]\n",
        b"{}\n",
        b'{"judgement":{},"fault":"","cpu_s":0,"last":false}\n',
        b'{"judgement":{"verdict":"passed","reward":7,"reason":"","components":{},"flags":[]},"fault":"","cpu_s":0,"last":0}\n',
        b'{"judgement":{"verdict":"great","reward":1,"reason":"","components":{},"flags":[]},"fault":"","cpu_s":0,"last":0}\n',
        b'{"judgement":{"verdict":"failed","reward":NaN,"reason":"","components":{},"flags":[]},"fault":"","cpu_s":0,"last":0}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_rubbish_is_a_fault(line: bytes) -> None:
    with pytest.raises(CheckerDied):
        read_answer_line(line)
    if b"judgement" not in line:
        with pytest.raises(CheckerDied):
            read_ready(line)


@given(st.text(st.characters(), max_size=2000))
def test_outward_text_is_valid_and_bounded(text: str) -> None:
    assert len(outward(text)) <= 500 * 10
    outward(text).encode("utf-8")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Judgement("passed", None),
        lambda: Judgement("failed", math.nan),
        lambda: Judgement("partial", 1.5),
        lambda: Judgement("infrastructure", 0.0),
        lambda: Judgement("timeout_infra", 0.0),
        lambda: Judgement("unverifiable", 0.5),
        lambda: Judgement("good", 1.0),  # type: ignore[arg-type]
        lambda: Judgement("failed", 0.0, None),  # type: ignore[arg-type]
        lambda: Judgement.partial(0.5, "", {"a": math.inf}),
        lambda: Judgement.partial(0.5, "", {"a": "b"}),  # type: ignore[dict-item]
    ],
)
def test_a_verdict_and_its_reward_never_contradict_each_other(make: object) -> None:
    with pytest.raises(ValueError, match="must"):
        make()  # type: ignore[operator]
