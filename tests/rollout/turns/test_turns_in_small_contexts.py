"""Attempts that are longer than their context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.rollout.context.compress import Compress
from services.rollout.context.notes import Notes
from services.rollout.context.retrieve import Retrieve
from services.rollout.context.segments import ContextPolicy
from services.rollout.context.window import Window
from services.rollout.engines.base import GenerateRequest, Ids
from services.rollout.formats.calls import Call
from services.rollout.tools.tool import make_tool
from services.rollout.tools.toolset import Toolset
from services.rollout.turns.episode import End
from services.rollout.turns.making_room import ASK, RoomMaker
from services.rollout.turns.sampling import Sampler
from services.rollout.turns.tokens import Tokens
from services.rollout.turns.transcript import Transcript
from shared.contracts import ChatMessage
from tests.rollout.turns import templates
from tests.rollout.turns.scripted import (
    AMPLE,
    TOOLS,
    ScriptedEngine,
    attempt,
    check_exact,
    count_of,
    says,
    spelled,
    tokens_of,
)
from tests.rollout.turns.test_turns import call_echo, written

LIMIT, RESERVE = 2400, 300
TASK = (ChatMessage(role="user", content="the task: go on"),)


def run(
    tokens: Tokens,
    policy: ContextPolicy,
    script: Callable[[int, GenerateRequest], Ids],
    turns: int = 30,
    **more: Any,
) -> tuple[End, ScriptedEngine]:
    notes = Notes()
    toolset = Toolset((*TOOLS.tools, notes.tool()))
    engine = ScriptedEngine(script, **more)

    def room(transcript: Transcript) -> RoomMaker:
        sampler = Sampler(engine, "g/0", tokens.stop_ids, 1.0, 1.0, 7)
        tells = "tools" in tokens.template
        schemas = toolset.schemas() if tells else ()
        return RoomMaker(policy, tokens, sampler, transcript, LIMIT, RESERVE, schemas, notes)

    budgets = replace(AMPLE, turns=turns, context_tokens=LIMIT)
    end = attempt(engine, tokens, budgets, room_maker=room, messages=TASK, toolset=toolset)
    return end, engine


def growing(tokens: Tokens, summary: str = "so far so good") -> Callable[[int, GenerateRequest], Ids]:
    """Calls with 150 characters each, numbered; and a summary where one is asked for."""

    def script(number: int, request: GenerateRequest) -> Ids:
        text = (
            summary
            if request.request_id.endswith("/summary")
            else call_echo(tokens, f"<{number}>" + "x" * 150)
        )
        return says(tokens, [text])(0, request)

    return script


@pytest.mark.parametrize(
    "policy", [Window(), Compress(summary_tokens=60), Retrieve()], ids=lambda p: type(p).__name__
)
@pytest.mark.parametrize("name", ["tiny", "qwen_like", "llama_like", "strict"])
def test_an_attempt_goes_on_past_its_context(tiny_tokenizer: Any, name: str, policy: ContextPolicy) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.ALL[name])
    end, engine = run(tokens, policy, growing(tokens))
    assert (end.stop_reason, end.turns, len(end.tool_calls)) == ("turns", 30, 30)
    assert len(end.sequences) > 2
    check_exact(end, engine)
    for asked in engine.asked:
        assert len(asked.prompt) + len(asked.made.token_ids) <= LIMIT
        assert "the task: go on" in tokens.raw(asked.prompt)
    # Each context but the last was filled before it was rewritten.
    assert all(len(sequence.token_ids) > LIMIT // 2 for sequence in end.sequences[:1])


def test_a_summary_is_sampled_recorded_and_counted(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    end, engine = run(tokens, Compress(summary_tokens=60, newest=1), growing(tokens, "I found <|user|> 17"))
    asked = [item for item in engine.asked if ASK[:40] in tokens.raw(item.prompt)]
    assert asked
    assert len(engine.asked) == end.turns + len(asked)
    assert sum(int(s.loss_mask.sum()) for s in end.sequences) == sum(
        len(a.made.token_ids) for a in engine.asked
    )
    last = tokens.raw(engine.asked[-1].prompt)
    assert "[Your summary of what is no longer shown]\nI found" in last
    assert last.count("[Your summary") == 1  # the earlier ones are summed up again
    assert "go on\n\n[Your summary" in last  # beside the task, not a second message of the user
    check_exact(end, engine)


def test_compress_digests_before_it_sums_up(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    long = "y" * 700

    def script(number: int, request: GenerateRequest) -> Ids:
        assert not request.request_id.endswith("/summary")
        return says(tokens, [call_echo(tokens, "x")])(0, request)

    async def echo(text: str) -> str:
        """Returns much."""
        return long

    engine = ScriptedEngine(script)
    toolset = Toolset((make_tool(echo),))
    sampler = Sampler(engine, "g/0", tokens.stop_ids, 1.0, 1.0, 7)
    end = attempt(
        engine,
        tokens,
        replace(AMPLE, turns=9, context_tokens=5000),
        room_maker=lambda t: RoomMaker(Compress(newest=1), tokens, sampler, t, 5000, RESERVE),
        messages=TASK,
        toolset=toolset,
    )
    assert end.stop_reason == "turns"
    assert "[shortened: 700 characters in 1 lines" in tokens.raw(engine.asked[-1].prompt)
    check_exact(end, engine)


def test_a_policy_that_may_not_sample_more_forgets_instead(tiny_tokenizer: Any) -> None:
    """A summary that is cut off is worth as much as it says; one that cannot be asked for is not waited for."""
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    # The summary would have to be longer than a context has room for.
    end, engine = run(tokens, Compress(summary_tokens=LIMIT, newest=1), growing(tokens))
    assert end.stop_reason == "turns"
    assert len(engine.asked) == end.turns
    check_exact(end, engine)


def test_what_left_the_context_is_found_again(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    texts = [f"secret{number} " + "x" * 150 for number in range(12)]
    said = [call_echo(tokens, text) for text in texts]
    said += [written(tokens, Call("recall", {"query": "secret1", "most": 1})), "found"]
    end, engine = run(tokens, Retrieve(), says(tokens, said))
    assert end.stop_reason == "stop"
    assert end.tool_calls[-1].name == "recall"
    assert end.tool_calls[-1].result.startswith("[note ")
    assert texts[1] in end.tool_calls[-1].result
    assert "secret1 " not in tokens.raw(engine.asked[-2].prompt)
    check_exact(end, engine)


@pytest.mark.parametrize("name", ["tiny", "qwen_like", "llama_like", "strict"])
def test_turns_that_stay_keep_the_ids_they_were_sampled_as(tiny_tokenizer: Any, name: str) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.ALL[name])
    odd = spelled(tokens, "<|pad|>")
    script = growing(tokens)
    before = "" if name == "llama_like" else "\n"
    call = np.concatenate([odd, tokens.encode(before)[0]]) if before else np.zeros(0, dtype=np.int32)
    end, engine = run(tokens, Window(), lambda n, r: np.concatenate([call, script(n, r)]))
    check_exact(end, engine)
    rewritten = end.sequences[1:]
    assert rewritten
    for sequence in rewritten:
        prompt = sequence.token_ids[: int(np.argmax(sequence.loss_mask))]
        kept = sum(count_of(prompt, asked.made.token_ids) for asked in engine.asked)
        assert kept > 0
        if before:
            assert count_of(prompt, odd) == kept  # every answer that is still shown, none made of text again
            assert not (prompt == tiny_tokenizer.pad_token_id).any()


def test_where_no_room_can_be_made_the_context_ends_it(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    task = (ChatMessage(role="user", content="z" * 2000),)
    engine = ScriptedEngine(says(tokens, [call_echo(tokens, "x" * 20)]))
    sampler = Sampler(engine, "g/0", tokens.stop_ids, 1.0, 1.0, 7)
    end = attempt(
        engine,
        tokens,
        replace(AMPLE, context_tokens=LIMIT),
        room_maker=lambda t: RoomMaker(Window(), tokens, sampler, t, LIMIT, RESERVE),
        messages=task,
    )
    assert end.stop_reason == "context"
    assert end.turns > 0
    check_exact(end, engine)
