"""Tokens to text, piece by piece."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.rollout.turns.unfolding import Unfolding


def pieces(decode: Any, ids: list[int]) -> list[str]:
    unfolding = Unfolding(decode)
    return [*(unfolding.add(number) for number in ids), unfolding.rest()]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40), st.binary(max_size=12))
def test_bytes_become_the_text_that_they_are_together(text: str, noise: bytes) -> None:
    """A token a byte: as far as possible from a character."""
    data = text.encode("utf-8", "ignore") + noise
    decode = lambda ids: bytes(ids).decode("utf-8", "replace")  # noqa: E731
    whole = decode(list(data))
    found = pieces(decode, list(data))
    if "\ufffd" not in whole:
        assert "".join(found) == whole
    assert not any("\ufffd" in piece for piece in found) or "\ufffd" in whole


def test_a_real_tokenizer_unfolds_to_what_it_decodes(smollm2_tokenizer: Any) -> None:
    text = "def f(x):\n    return 'größer 🦜🧵'  # 12 345\n<|im_end|>"
    ids = smollm2_tokenizer.encode(text, add_special_tokens=False)
    found = pieces(lambda part: smollm2_tokenizer.decode(part, clean_up_tokenization_spaces=False), ids)
    assert "".join(found) == text
    assert len([piece for piece in found if piece]) > 10
