"""Where contents stand in what a template writes, and what it costs to find out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.rollout.chat import TemplateFault
from services.rollout.turns.conversation import Conversation, Spoken
from services.rollout.turns.layout import layout
from services.rollout.turns.tokens import Tokens
from shared.contracts import ChatMessage, Role
from tests.rollout.turns import templates
from tests.rollout.turns.scripted import tokens_of

contents_of = st.lists(
    st.lists(st.sampled_from(["a", " ", "\n", "<|end|>", "</think>", "x<|user|>"]), max_size=5).map("".join),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("name", templates.ALL)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=contents_of)
def test_places_are_in_order_and_exact_ones_are_the_contents(
    tiny_tokenizer: Any, name: str, contents: list[str]
) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.ALL[name])
    roles = ["user", "assistant"] * 3

    def render(parts: Sequence[str]) -> str:
        messages = [{"role": role, "content": part} for role, part in zip(roles, parts, strict=False)]
        return tokens.render(messages, opened=True)

    text = render(contents)
    places = layout(text, contents, render)
    if name not in ("forgets_reasoning", "llama_like", "always_thinks"):
        assert places is not None
        assert all(place.exact for place in places)
    at = 0
    for place, content in zip(places or (), contents, strict=False):
        assert at <= place.start <= place.end
        assert not place.exact or text[place.start : place.end] == content
        at = place.end


def test_a_rewritten_message_does_not_hide_its_neighbours() -> None:
    def render(parts: Sequence[str]) -> str:
        return "".join(f"[{part.rpartition(':')[2]}]" for part in parts)

    contents = ["one", "drop:two", "three"]
    places = layout(render(contents), contents, render)
    assert places is not None
    assert [(place.start, place.end, place.exact) for place in places] == [
        (1, 4, True),
        (6, 9, False),
        (11, 16, True),
    ]


def test_messages_out_of_order_have_no_layout() -> None:
    def render(parts: Sequence[str]) -> str:
        return "|".join(reversed(parts))

    assert layout(render(["a", "b"]), ["a", "b"], render) is None
    assert layout("ab", ["a", "b", "c"], lambda parts: "".join(parts[:2])) is None


def long_conversation(tokens: Tokens, pairs: int) -> list[Spoken]:
    found = [Spoken(ChatMessage(role="user", content="go"))]
    roles: tuple[Role, Role] = ("assistant", "tool")
    for number in range(pairs):
        ids = np.concatenate([tokens.encode(f"call {number}")[0], [tokens.end_id]]).astype(np.int32)
        found.append(Spoken(ChatMessage(role=roles[0], content=f"call {number}"), ids))
        found.append(Spoken(ChatMessage(role=roles[1], content=f"result {number}")))
    return found


@pytest.mark.parametrize("name", ["tiny", "qwen_like", "llama_like", "opens_reasoning"])
def test_a_long_history_is_rendered_a_few_times(
    tiny_tokenizer: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.ALL[name])
    seen: list[int] = []
    render = tokens.render
    monkeypatch.setattr(tokens, "render", lambda *args, **more: (seen.append(1), render(*args, **more))[1])
    conversation = Conversation(tokens, ())
    piece = conversation.replace(long_conversation(tokens, 300))
    assert len(seen) < 12
    assert sum(span.length for span in piece.roles) == len(piece.ids)
    short = Conversation(tokens, ()).replace(long_conversation(tokens, 2))
    pattern = [(span.role, span.length) for span in short.roles]
    assert [role for role, _ in pattern] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [(span.role, span.length) for span in piece.roles][:3] == pattern[:3]


def test_a_template_without_a_layout_still_gives_spans(tiny_tokenizer: Any) -> None:
    """It refuses the marks, and the contents are too many to be rendered one by one."""
    refuses = (
        "{%- for message in messages %}{%- if '\ue000' in message.content %}{{ raise_exception('no') }}{%- endif %}"
        "<|{{ message.role }}|>{{ message.content }}<|end|>{%- endfor %}"
        "{%- if add_generation_prompt %}<|assistant|>{%- endif %}"
    )
    tokens = tokens_of(tiny_tokenizer, refuses)
    few = Conversation(tokens, ()).replace(long_conversation(tokens, 2))
    assert [span.role for span in few.roles] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    many = Conversation(tokens, ()).replace(long_conversation(tokens, 100))
    assert [(span.role, span.length) for span in many.roles][1:] == [("assistant", 1)]
    assert sum(span.length for span in many.roles) == len(many.ids)


def test_a_conversation_that_the_template_refuses_is_a_fault(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.STRICT)
    twice = (ChatMessage(role="user", content="a"), ChatMessage(role="user", content="b"))
    with pytest.raises(TemplateFault, match=r"does not render \['user', 'user'\]: roles must alternate"):
        Conversation(tokens, twice).open()
