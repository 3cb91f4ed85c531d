"""The format is chosen by what a chat template is written for."""

from __future__ import annotations

from typing import Any

import pytest

from services.rollout.formats.choose import choose
from services.rollout.formats.results import Answered, render_results
from services.rollout.turns.tokens import Tokens
from shared.contracts import ChatMessage
from shared.errors import ConfigError
from tests.rollout.formats.test_formats import SCHEMAS
from tests.rollout.turns import templates

USER = ChatMessage(role="user", content="hello")
SYSTEM = ChatMessage(role="system", content="be brief")


def tokens_of(tiny_tokenizer: Any, template: str) -> Tokens:
    tiny_tokenizer.chat_template = template
    return Tokens(tiny_tokenizer, frozenset({tiny_tokenizer.eos_token_id}))


@pytest.mark.parametrize(
    ("template", "name", "tells", "role", "systems"),
    [
        (templates.TINY, "fenced", False, "tool", True),
        (templates.QWEN_LIKE, "hermes", True, "tool", True),
        (templates.LLAMA_LIKE, "llama", True, "tool", True),
        (templates.STRICT, "fenced", False, "user", False),
        (templates.ALWAYS_THINKS, "hermes", True, "tool", True),
        (templates.TOOLS_LAST, "fenced", False, "user", True),
    ],
)
def test_choice(tiny_tokenizer: Any, template: str, name: str, tells: bool, role: str, systems: bool) -> None:
    tokens = tokens_of(tiny_tokenizer, template)
    adapter = choose(tokens.template, tokens.render, SCHEMAS)
    assert (adapter.format.name, adapter.tells, adapter.role, adapter.systems) == (name, tells, role, systems)


def test_a_format_can_be_named(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    assert choose(tokens.template, tokens.render, SCHEMAS, "hermes").format.name == "hermes"
    with pytest.raises(ConfigError, match=r"'hermse' is not known; known: fenced, hermes, llama"):
        choose(tokens.template, tokens.render, SCHEMAS, "hermse")


@pytest.mark.parametrize("template", templates.ALL.values(), ids=templates.ALL)
@pytest.mark.parametrize("messages", [(USER,), (SYSTEM, USER)], ids=["user", "system"])
def test_every_template_is_told_of_the_tools_once(
    tiny_tokenizer: Any, template: str, messages: tuple[ChatMessage, ...]
) -> None:
    tokens = tokens_of(tiny_tokenizer, template)
    adapter = choose(tokens.template, tokens.render, SCHEMAS)
    if not adapter.systems and len(messages) == 2:
        messages = messages[1:]
    introduced = adapter.introduce(messages, SCHEMAS)
    text = tokens.render(
        [{"role": m.role, "content": m.content} for m in introduced],
        SCHEMAS if adapter.tells else (),
        opened=True,
    )
    assert text.count("Writes a file.") == 1
    assert text.count("hello") == 1
    assert text.index("Writes a file.") < text.index("hello")


def test_an_attempt_without_tools_is_told_of_none(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    assert choose(tokens.template, tokens.render, ()).introduce((USER,), ()) == (USER,)


def test_results_by_role() -> None:
    answers = [Answered("bash", "one"), Answered("", "error: no")]
    assert render_results(answers, "tool") == (
        ChatMessage(role="tool", content="one"),
        ChatMessage(role="tool", content="error: no"),
    )
    (message,) = render_results(answers, "user")
    assert message.role == "user"
    assert (
        message.content == "[result of bash, 1 of 2]\none\n\n[result of a malformed call, 2 of 2]\nerror: no"
    )
