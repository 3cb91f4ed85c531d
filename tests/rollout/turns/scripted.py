"""An engine that says what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from services.rollout.engines.base import (
    EngineLoad,
    GenerateRequest,
    Generation,
    GenerationFault,
    Ids,
    runs_of,
)
from services.rollout.formats.choose import choose
from services.rollout.tools.tool import make_tool
from services.rollout.tools.toolset import Toolset
from services.rollout.turns.budgets import Budgets
from services.rollout.turns.episode import End, Episode
from services.rollout.turns.sampling import Sampler
from services.rollout.turns.tokens import Tokens
from shared.contracts import ChatMessage
from shared.domains.tools import Submission

USER = ChatMessage(role="user", content="go")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and its answer."""

    prompt: Ids
    made: Generation


@dataclass(slots=True)
class ScriptedEngine:
    """`script(number of the turn, request)` gives the ids to sample. Log-probabilities are -0.001 × the count of tokens
    so far: each is one of its kind. Versions rise with every token whose number `versions` divides."""

    script: Callable[[int, GenerateRequest], Ids]
    longest: int = 1 << 30
    pause_s: float = 0.0
    versions: int = 1 << 60
    asked: list[Asked] = field(default_factory=list)
    _count: int = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        number = len(self.asked)
        ids = np.asarray(self.script(number, request), dtype=np.int32)[: request.max_tokens]
        if self.pause_s:
            await asyncio.sleep(self.pause_s)
        if not len(ids):
            raise GenerationFault("the script is at its end")
        numbers = np.arange(self._count, self._count + len(ids))
        self._count += len(ids)
        made = Generation(
            token_ids=ids,
            logprobs=(-0.001 * (numbers + 1)).astype(np.float32),
            versions=runs_of([3 + int(at) // self.versions for at in numbers]),
            stop_reason="stop" if int(ids[-1]) in request.stop_ids else "length",
        )
        self.asked.append(Asked(request.prompt_ids, made))
        return made

    async def load_policy(self, weights: Path, version: int, canary: Any) -> None:
        raise NotImplementedError

    async def score(self, token_ids: Ids, lengths: Ids) -> Any:
        raise NotImplementedError

    def capacity(self) -> EngineLoad:
        return EngineLoad(1, 0, 0, 3, self._count, 0)

    def close(self) -> None:
        """Holds nothing."""


def tokens_of(tokenizer: Any, template: str = "") -> Tokens:
    if template:
        tokenizer.chat_template = template
    return Tokens(tokenizer, frozenset({tokenizer.eos_token_id}))


def says(tokens: Tokens, texts: Sequence[str]) -> Callable[[int, GenerateRequest], Ids]:
    """Turn after turn; the last for ever. Each is ended with the end token."""
    end = np.array(sorted(tokens.stop_ids), dtype=np.int32)
    table = [np.concatenate([tokens.encode(text)[0], end]) for text in texts]
    return lambda number, request: table[min(number, len(table) - 1)]


def spelled(tokens: Tokens, text: str) -> Ids:
    """One token a character: as text it reads the same, and would be tokenized in another way."""
    ids = np.concatenate([tokens.encode(character)[0] for character in text])
    assert not np.array_equal(tokens.encode(text)[0], ids)
    return ids


def count_of(ids: Ids, part: Ids) -> int:
    """How often `part` is in `ids`."""
    return sum(np.array_equal(ids[at : at + len(part)], part) for at in range(len(ids) - len(part) + 1))


async def echo(text: str) -> str:
    """Returns its argument."""
    return text


async def submit(answer: str) -> Submission:
    """Ends the attempt."""
    return Submission(answer)


TOOLS = Toolset((make_tool(echo), make_tool(submit)))
AMPLE = Budgets(turns=50, turn_tokens=4096, tokens=1 << 20, context_tokens=1 << 20, calls=500, wall_s=60.0)


def episode(engine: ScriptedEngine, tokens: Tokens, budgets: Budgets = AMPLE, **more: Any) -> Episode:
    toolset = more.pop("toolset", TOOLS)
    sampler = Sampler(engine, "g/0", tokens.stop_ids, 1.0, 1.0, 7)
    adapter = choose(tokens.template, tokens.render, toolset.schemas(), more.pop("form", ""))
    return Episode(tokens, adapter, toolset, budgets, sampler, **more)


def attempt(engine: ScriptedEngine, tokens: Tokens, budgets: Budgets = AMPLE, **more: Any) -> End:
    messages = more.pop("messages", (USER,))
    return asyncio.run(episode(engine, tokens, budgets, **more).run(messages))


def check_exact(end: End, engine: ScriptedEngine) -> None:
    """What every attempt must keep: each answer of the engine stands once in the sequences, as it was sampled, behind
    exactly the ids that the engine was given; nothing else is masked in."""
    left = list(engine.asked)
    for sequence in end.sequences:
        mask = sequence.loss_mask.astype(bool)
        assert not sequence.logprobs[~mask].any()
        assert ((sequence.versions() == -1) == ~mask).all()
        at = 0
        while mask[at:].any():
            start = at + int(np.argmax(mask[at:]))
            place = next(
                (
                    number
                    for number, asked in enumerate(left)
                    if np.array_equal(asked.prompt, sequence.token_ids[:start])
                ),
                None,
            )
            assert place is not None, "a turn in no context that was sampled from"
            made = left.pop(place).made
            stop = start + len(made.token_ids)
            np.testing.assert_array_equal(sequence.token_ids[start:stop], made.token_ids)
            np.testing.assert_array_equal(sequence.logprobs[start:stop], made.logprobs)
            assert mask[start:stop].all()
            assert runs_of(list(sequence.versions()[start:stop])) == made.versions
            at = stop
    assert not left, "a turn that is in no sequence"
