"""Templates: the prompt that is sampled from is the prompt that is imitated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from services.rollout.chat import ChatCodec, TemplateFault
from shared.contracts import ChatMessage
from shared.errors import DependencyError

QUESTION = (
    ChatMessage(role="system", content="Be brief."),
    ChatMessage(role="user", content="What is 3 + 4?"),
)
ANSWER = (ChatMessage(role="assistant", content="7"),)


@pytest.fixture
def codec(tiny_folder: Path) -> ChatCodec:
    return ChatCodec.open(str(tiny_folder))


def test_a_demonstration_begins_with_the_prompt(codec: ChatCodec) -> None:
    prompt = codec.prompt(QUESTION)
    shown = codec.demonstrate(QUESTION, ANSWER)
    assert np.array_equal(shown.prompt.ids, prompt.ids)
    assert shown.answer_ids.tolist() == [*codec.encode("7").tolist(), 2]
    assert codec.stop_ids == {2}
    assert [(span.role, span.length) for span in prompt.roles] == [
        ("system", len("Be brief.") + 2),
        ("user", len("What is 3 + 4?") + 2),
        ("assistant", 1),
    ]
    assert sum(span.length for span in prompt.roles) == len(prompt.ids)


def test_text_drops_special_tokens_only(codec: ChatCodec) -> None:
    ids = np.concatenate([codec.encode(" a\n7 "), [2]]).astype(np.int32)
    assert codec.text(ids) == codec.text(ids[:-1]) == " a\n7 "
    assert codec.text(np.array([4, 2], dtype=np.int32)) == ""


@pytest.mark.parametrize(
    ("template", "message"),
    [
        # Closes an opened answer with a marker that a written answer does not have.
        (
            "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}#{% endif %}",
            "breaks at",
        ),
        ("{% for m in messages %}{{ m.content }}|{% endfor %}", "does not close an answer"),
        ("{{ raise_exception('no system role here') }}", "no system role here"),
        ("{{ messages[0]['content'", "does not render"),
        ("{% if false %}x{% endif %}", "empty prompt"),
    ],
)
def test_a_template_that_breaks_a_property_is_named(tiny_folder: Path, template: str, message: str) -> None:
    codec = ChatCodec.open(str(tiny_folder), template)
    with pytest.raises(TemplateFault, match=message):
        codec.demonstrate(QUESTION, ANSWER)


def test_a_demonstration_is_one_assistant_message(codec: ChatCodec) -> None:
    with pytest.raises(TemplateFault, match="one assistant message"):
        codec.demonstrate(QUESTION, (*ANSWER, *ANSWER))


def test_a_missing_tokenizer_names_the_mend(tmp_path: Path) -> None:
    with pytest.raises(DependencyError, match="temper models prepare"):
        ChatCodec.open(str(tmp_path))
