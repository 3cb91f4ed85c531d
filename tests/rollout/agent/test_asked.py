"""What a request may ask for, and what it is refused for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollout.agent.asked import RefusedError, read_request
from shared.contracts import Sampling
from tests.rollout.agent.desks import ECHO, asked, body, user

TASK = Sampling(temperature=0.7, top_p=1.0, max_tokens=100)


def refused(**more: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        read_request(body(more.pop("messages", [user("x")]), **more), TASK, strict=True)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"temperature": 0}, "temperature is 0 and this task samples with 0.7"),
        ({"temperature": 1}, 'set the agent\'s sampling to "task"'),
        ({"top_p": 0.5}, "top_p is 0.5 and this task samples with 1"),
        ({"max_tokens": 101}, "max_tokens is 101 and this task allows a turn 100"),
        ({"max_completion_tokens": 4000}, "max_completion_tokens is 4000"),
        ({"n": 2}, "one choice a request"),
        ({"logprobs": True}, "recorded, not returned"),
        ({"logit_bias": {"5": -100}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "leave it at 0"),
        ({"response_format": {"type": "json_object"}}, "only text"),
        ({"tools": [ECHO], "tool_choice": "required"}, "cannot be forced"),
        ({"tools": [{"type": "retrieval", "function": {"name": "x"}}]}, "only functions"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role is 'robot'"),
        ({"messages": [user("x"), {"role": "assistant", "content": "y"}]}, "answers a user or a tool"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "a part of type 'image_url'",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
                    user("x"),
                ]
            },
            "arguments of a tool call are no JSON",
        ),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": "hello"}, "messages"),
    ],
)
def test_what_cannot_be_done_as_asked_is_refused_by_name(more: dict[str, Any], why: str) -> None:
    assert why in str(refused(**more))


def test_what_contradicts_the_task_is_left_aside_where_the_run_says_so() -> None:
    request = body([user("x")], temperature=0, top_p=0.1, max_tokens=4000)
    assert read_request(request, TASK, strict=False).max_tokens == 100
    fitting = body(
        [user("x")], temperature=0.7, top_p=1, max_tokens=50, stop="\n", seed=3, user="me", store=True
    )
    found = read_request(fitting, TASK, strict=True)
    assert (found.max_tokens, found.stops) == (50, ("\n",))


def test_messages_that_say_the_same_are_equal_however_they_are_written() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1, "b": [2]}'}}
    again = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"b":[2],"a":1}'}}
    one = asked([user("x"), {"role": "assistant", "content": None, "tool_calls": [call]}, user("y")])
    other = asked(
        [
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": "", "tool_calls": [again], "refusal": None, "annotations": []},
            user("y"),
        ]
    )
    assert one.messages == other.messages
    assert one.names == {"c": "f"}


@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["messages", "role", "content", "tools", "tool_calls", "function", "stop", "n"]), inner, max_size=4
    ),
    max_leaves=12,
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_garbage_is_refused_and_nothing_else(garbage: bytes) -> None:
    with pytest.raises(RefusedError):
        read_request(garbage, TASK, strict=True)
