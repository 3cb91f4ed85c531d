"""A tokenizer and its chat template, as attempts of many turns need them.

Invariant: text of tools becomes no special token: what a tool printed can neither end its message nor begin another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.rollout.chat import TemplateFault
from services.rollout.engines.base import Ids
from services.rollout.formats.choose import Schemas
from shared.errors import ConfigError

_MARKUP = re.compile(r"</?(?:tool_call|tool_response|tools|think)>")
"""Words of the formats, whether or not the tokenizer has a token for them."""


class Tokens:
    """Of a Hugging Face tokenizer. Not for several threads at once. Raises `ConfigError` for a slow tokenizer."""

    def __init__(self, tokenizer: Any, stop_ids: frozenset[int]) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"the tokenizer {type(tokenizer).__name__} is none of the library `tokenizers`: turns of tools need its "
                "character offsets; save the model with a tokenizer.json"
            )
        self._tokenizer = tokenizer
        self.stop_ids = stop_ids
        self.end_id = tokenizer.eos_token_id if tokenizer.eos_token_id in stop_ids else min(stop_ids)
        self.stops = {number: self.raw(np.array([number], dtype=np.int32)) for number in sorted(stop_ids)}
        special = set(tokenizer.all_special_tokens)
        added = [
            text for text in tokenizer.get_added_vocab() if text in special or re.match(r"[<\[]\S", text)
        ]
        self._special = re.compile(
            "|".join(
                [*(re.escape(t) for t in sorted(added, key=len, reverse=True) if len(t) > 1), _MARKUP.pattern]
            )
        )

    @property
    def template(self) -> str:
        """Text of the chat template, all of its variants."""
        found = self._tokenizer.chat_template
        return "\n".join(found.values()) if isinstance(found, Mapping) else str(found or "")

    def render(
        self, messages: Sequence[Mapping[str, str]], schemas: Schemas = (), *, opened: bool = False
    ) -> str:
        """`opened`: with the opening of an answer. Raises `TemplateFault`."""
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tools=list(schemas) or None, add_generation_prompt=opened, tokenize=False
            )
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            roles = [message["role"] for message in messages]
            raise TemplateFault(
                f"the chat template does not render {roles[:8]}{' …' if len(roles) > 8 else ''}: {error}; "
                "correct model.chat_template"
            ) from error
        return text

    def encode(self, text: str) -> tuple[Ids, NDArray[np.int64]]:
        """int32[n], and where in `text` each token begins: int64[n]."""
        made = self._tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,  # it warns of texts over a length that is the tokenizer's guess, not the model's
        )
        starts = np.array([start for start, _ in made["offset_mapping"]], dtype=np.int64)
        return np.array(made["input_ids"], dtype=np.int32), starts

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False, verbose=False))

    def raw(self, ids: Ids) -> str:
        """With special tokens: what the template would have to write to give these tokens."""
        text: str = self._tokenizer.decode(
            ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def said(self, ids: Ids) -> str:
        """One turn as a message's content: raw, but without the end token."""
        return self.raw(ids[:-1] if len(ids) and int(ids[-1]) in self.stop_ids else ids)

    def answer(self, ids: Ids) -> str:
        """As the verifier reads it: without special tokens."""
        kept = ids[:-1] if len(ids) and int(ids[-1]) in self.stop_ids else ids
        text: str = self._tokenizer.decode(
            kept.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def plain(self, text: str) -> str:
        """`text` with a space in every special token and tag: `<|im_end|>` → `< |im_end|>`."""
        return self._special.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
