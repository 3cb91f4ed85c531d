"""Attempts of many turns sampled by a real model: what is recorded is what the model would say of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.rollout.engines.decoder import Decoder, load_model
from services.rollout.engines.transformers import TransformersEngine
from services.rollout.formats.calls import Call, Parsed
from services.rollout.formats.choose import Adapter
from services.rollout.formats.fenced import Fenced
from services.rollout.turns.episode import End, Episode
from services.rollout.turns.sampling import Sampler
from services.rollout.turns.tokens import Tokens
from tests.rollout.turns import templates
from tests.rollout.turns.scripted import AMPLE, TOOLS, USER, tokens_of


class EveryTurnCalls(Fenced):
    """Reads any turn as a call: an untrained model writes none."""

    def parse(self, text: str) -> Parsed:
        return Parsed((Call("echo", {"text": text[:20]}),), "")


@pytest.fixture
def engine(tiny_model: Any) -> Iterator[TransformersEngine]:
    engine = TransformersEngine(Decoder(tiny_model, 16), max_batch=16, max_batch_tokens=8192)
    yield engine
    engine.close()


def full_logprobs(folder: Path, ids: np.ndarray) -> np.ndarray:
    """float64[n] of the model's own plain pass over a whole sequence."""
    tokens = torch.from_numpy(ids.astype(np.int64))[None]
    with torch.no_grad():
        logits = load_model(str(folder), "float64", "cpu")(input_ids=tokens).logits[0, :-1]
    picked = torch.log_softmax(logits, -1).gather(-1, tokens[0, 1:, None])[:, 0]
    return np.concatenate([[0.0], picked.numpy()])


async def attempts(engine: TransformersEngine, tokens: Tokens, weights: Path, count: int) -> Sequence[End]:
    adapter = Adapter(EveryTurnCalls(), tells=True, role="tool", systems=True)
    budgets = replace(AMPLE, turns=4, turn_tokens=40, context_tokens=500)
    await engine.load_policy(weights, 5, None)

    async def one(number: int) -> End:
        sampler = Sampler(engine, f"g/{number}", tokens.stop_ids, 1.0, 1.0, number)
        return await Episode(tokens, adapter, TOOLS, budgets, sampler).run((USER,))

    return await asyncio.gather(*(one(number) for number in range(count)))


@pytest.mark.parametrize("name", ["tiny", "forgets_reasoning"])
def test_log_probabilities_equal_a_full_pass_over_each_sequence(
    engine: TransformersEngine, tiny_tokenizer: Any, tiny_folder: Path, name: str
) -> None:
    """A template that rewrites (it finds no reasoning to forget here, but is asked each turn) is as exact."""
    tokens = tokens_of(tiny_tokenizer, templates.ALL[name])
    ends = asyncio.run(attempts(engine, tokens, tiny_folder / "model.safetensors", 12))
    assert any(end.turns > 1 for end in ends)
    for end in ends:
        assert end.stop_reason in ("turns", "length", "context")
        for sequence in end.sequences:
            want = full_logprobs(tiny_folder, sequence.token_ids) * sequence.loss_mask
            assert np.abs(sequence.logprobs - want).max() < 1e-4
            assert set(np.unique(sequence.versions()[sequence.loss_mask == 1])) == {5}


def test_the_same_seeds_give_the_same_attempt(
    engine: TransformersEngine, tiny_tokenizer: Any, tiny_folder: Path
) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    first, second = (
        asyncio.run(attempts(engine, tokens, tiny_folder / "model.safetensors", 4)) for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        for left, right in zip(one.sequences, other.sequences, strict=True):
            np.testing.assert_array_equal(left.token_ids, right.token_ids)
