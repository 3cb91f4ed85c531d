"""The turns of an attempt, those first that another process has sampled of it.

Invariant: earlier turns are said again as they were sampled and their tools really run, so that the tools' own state is
there; the policy goes on only behind the very ids that its last turn followed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from services.rollout.continuing import Course, joined, rest_of
from services.rollout.engines.base import Generation, Ids
from services.rollout.turns.sampling import Speaks


@dataclass(frozen=True, slots=True)
class Resuming:
    """In the place of `sampler`. `course` takes every turn, so that the attempt can be handed back."""

    sampler: Speaks
    course: Course

    async def sample(self, context: Ids, max_tokens: int, turn: int, what: str = "") -> Generation:
        """Raises `GenerationFault`, and `OtherContextError` where earlier turns cannot be used."""
        if what:
            self.course.lost = "its context was rewritten by a summary"
            return await self.sampler.sample(context, max_tokens, turn, what)
        made = self.course.begun(turn, context)
        if made is None:
            made = await self.sampler.sample(context, max_tokens, turn)
        elif made.stop_reason == "cut" and len(made.token_ids) < max_tokens:
            whole, left = rest_of(context, made, max_tokens)
            try:
                made = joined(made, await self.sampler.sample(whole, left, turn))
            except asyncio.CancelledError:
                self.course.made(made, context)
                raise
        elif made.stop_reason == "cut":
            # Cut at its last token, or by who had more room: nobody asks for its end here, and nothing is missing.
            made = replace(made, stop_reason="length")
        self.course.made(made, context)
        return made
