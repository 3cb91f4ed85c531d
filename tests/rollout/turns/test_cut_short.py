"""An attempt of many turns that is cut short: what was sampled stays, exactly, and it says so."""

from __future__ import annotations

import asyncio
from typing import Any

from services.rollout.engines.cut import Cut
from services.rollout.tools.tool import make_tool
from services.rollout.tools.toolset import Toolset
from tests.rollout.turns.scripted import USER, ScriptedEngine, check_exact, episode, says, tokens_of

CALL = '```tool_call\n{"name": "wait", "arguments": {}}\n```'


def test_it_ends_between_turns_or_in_a_tool(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer)
    engine = ScriptedEngine(says(tokens, [CALL]))
    cut, calls = Cut(), 0

    async def wait() -> str:
        """Is asked for again and again."""
        nonlocal calls
        calls += 1
        if calls == 3:
            cut.ask("surplus")
        return "again"

    end = asyncio.run(episode(engine, tokens, toolset=Toolset((make_tool(wait),)), cut=cut).run((USER,)))
    assert (end.stop_reason, end.turns) == ("cancelled", 3)
    check_exact(end, engine)
