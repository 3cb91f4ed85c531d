"""Messages to token ids, and sampled ids to the text that is judged.

Invariant: a demonstration's ids begin with exactly the ids that sampling would have been given; sampled ids are
decoded for the verifier and never made from text again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from services.rollout.engines.base import Ids
from shared.contracts import ChatMessage, RoleSpan
from shared.errors import ConfigError, DependencyError
from shared.model_folder import check_tokenizer
from shared.plain_errors import one_line


class TemplateFault(ConfigError):
    """The chat template cannot be rendered, or breaks the property that tokens in are tokens out."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """ids int32[n], n ≥ 1; role spans of total length n. The opening of the answer is the assistant's."""

    ids: Ids
    roles: tuple[RoleSpan, ...]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A prompt, and the ids int32[m] of the answer to imitate, its stop token included."""

    prompt: Prompt
    answer_ids: Ids


class ChatCodec:
    """One tokenizer and its chat template. Not for several threads at once."""

    def __init__(self, tokenizer: Any, stop_ids: frozenset[int]) -> None:
        if not tokenizer.chat_template:
            raise TemplateFault(
                "the tokenizer has no chat template: set model.chat_template, or use an instruction-tuned model"
            )
        if not stop_ids:
            raise TemplateFault(
                "the model names no end token: set eos_token_id in its generation_config.json"
            )
        self._tokenizer = tokenizer
        self.stop_ids = stop_ids

    @property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer."""
        return self._tokenizer

    @classmethod
    def open(cls, path: str, chat_template: str = "") -> ChatCodec:
        """From a Hugging Face folder. Raises `DependencyError` where there is none or a damaged one, `TemplateFault`."""
        from transformers import AutoTokenizer

        folder = Path(path)
        check_tokenizer(folder)
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except Exception as error:  # the Rust side raises bare Exception for a file that it cannot read
            raise DependencyError(
                f"model.path {path!r}: the tokenizer cannot be loaded: {one_line(error)}; copy the model again"
            ) from error
        if chat_template:
            tokenizer.chat_template = chat_template
        return cls(tokenizer, _stop_ids(folder, tokenizer))

    def prompt(self, messages: Sequence[ChatMessage]) -> Prompt:
        """What the policy is given: the conversation, and the opening of its answer. Raises `TemplateFault`."""
        ids = self._ids(messages, opened=True)
        if not len(ids):
            raise TemplateFault("the chat template renders an empty prompt; correct model.chat_template")
        spans: list[RoleSpan] = []
        place = 0
        for count, message in enumerate(messages, start=1):
            end = _common(self._ids(messages[:count], opened=False), ids)
            if end > place:
                spans.append(RoleSpan(length=end - place, role=message.role))
                place = end
        if len(ids) > place:
            spans.append(RoleSpan(length=len(ids) - place, role="assistant"))
        return Prompt(ids, tuple(spans))

    def demonstrate(self, messages: Sequence[ChatMessage], answer: Sequence[ChatMessage]) -> Demonstration:
        """Raises `TemplateFault` where the whole does not begin with the prompt, or has no stop token after it."""
        if len(answer) != 1 or answer[0].role != "assistant":
            raise TemplateFault(
                f"a single_turn demonstration is one assistant message; got {[m.role for m in answer]}"
            )
        prompt = self.prompt(messages)
        ids = self._ids([*messages, *answer], opened=False)
        size = len(prompt.ids)
        same = _common(prompt.ids, ids)
        if same != size:
            raise TemplateFault(
                f"the chat template breaks at token {same} of a prompt of {size}: with the answer "
                f"{answer[0].content!r} the prompt is tokenized in another way than when it is sampled from; the "
                "template must open an answer as it writes one, and end the opening where a token ends"
            )
        ends = np.flatnonzero(np.isin(ids[size:], list(self.stop_ids)))
        if not len(ends):
            raise TemplateFault(
                f"the chat template does not close an answer with one of the end tokens {sorted(self.stop_ids)}: "
                "a policy that imitates it would never stop"
            )
        return Demonstration(prompt, ids[size : size + int(ends[0]) + 1])

    def text(self, token_ids: Ids) -> str:
        """The text of sampled ids without special tokens."""
        kept = token_ids[:-1] if len(token_ids) and int(token_ids[-1]) in self.stop_ids else token_ids
        text: str = self._tokenizer.decode(
            kept.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def encode(self, text: str) -> Ids:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def _ids(self, messages: Sequence[ChatMessage], opened: bool) -> Ids:
        from jinja2 import TemplateError

        conversation = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                conversation, add_generation_prompt=opened, tokenize=False
            )
        except (TemplateError, ValueError, TypeError) as error:
            raise TemplateFault(
                f"the chat template does not render {[m.role for m in messages]}: {error}; correct model.chat_template"
            ) from error
        return self.encode(text)


def _common(left: Ids, right: Ids) -> int:
    """Length of the common beginning."""
    size = min(len(left), len(right))
    different = np.flatnonzero(left[:size] != right[:size])
    return int(different[0]) if len(different) else size


def _stop_ids(folder: Path, tokenizer: Any) -> frozenset[int]:
    """The tokenizer's end token and what the model's generation configuration names beside it."""
    found = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
    configuration = folder / "generation_config.json"
    if configuration.is_file():
        try:
            named = json.loads(configuration.read_text(encoding="utf-8")).get("eos_token_id")
            found.update(
                int(item) for item in (named if isinstance(named, list) else [named]) if item is not None
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise DependencyError(
                f"{configuration} does not say eos_token_id: {one_line(error)}; copy the model again"
            ) from error
    return frozenset(found)
