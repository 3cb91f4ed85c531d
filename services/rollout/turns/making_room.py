"""Room in a context that is nearly full, by a context policy.

Invariant: the context that comes out has the room that was asked for, or nothing changes; a summary is sampled like a
turn, recorded like one, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.rollout.chat import TemplateFault
from services.rollout.context.notes import FOLDER, Notes
from services.rollout.context.segments import ContextPolicy, Digest, Keep, Plan, Segment, Step, Summary, fixed
from services.rollout.context.segments import Notes as ToNotes
from services.rollout.context.texts import digest
from services.rollout.context.window import Window
from services.rollout.formats.choose import Schemas
from services.rollout.turns.conversation import Conversation, Piece, Spoken
from services.rollout.turns.history import Entry, aside, shown
from services.rollout.turns.sampling import Speaks
from services.rollout.turns.tokens import Tokens
from services.rollout.turns.transcript import Transcript
from shared.contracts import ChatMessage

ASK = (
    "The conversation has become too long. Sum up what was done and found so far, in the order in which it happened: "
    "what is needed to go on, with names, numbers and paths as they are. Call no tool now."
)
_GOAL = 0.6
"""Of the context is left full: with more, it would have to be rewritten every few turns, and each time is a sequence."""


@dataclass(frozen=True, slots=True)
class Made:
    """The history that stays, its conversation, and its whole context."""

    entries: list[Entry]
    conversation: Conversation
    piece: Piece


@dataclass(slots=True)
class RoomMaker:
    """Of one attempt. `limit`: tokens of a context. `reserve`: kept free for a turn."""

    policy: ContextPolicy
    tokens: Tokens
    sampler: Speaks
    transcript: Transcript
    limit: int
    reserve: int
    schemas: Schemas = ()
    notes: Notes = field(default_factory=Notes)
    summaries: int = 0

    def needed(self) -> bool:
        return len(self.transcript) + self.reserve > self.limit

    async def make(self, entries: Sequence[Entry], left: int) -> Made | None:
        """What stays; None where no room can be made. `left`: tokens that the attempt may still sample.

        Raises `GenerationFault`, `SandboxFault`.
        """
        full = self.limit - self.reserve
        segments = self._segments(entries)
        for goal in (int(full * _GOAL), full):
            plan = self.policy.plan(segments, goal)
            if plan is not None:
                made = self._whole(await self._applied(plan, entries, segments, left))
                if made is None:
                    made = self._whole(_newest(entries, segments, goal))
                if made is not None and len(made.piece.ids) <= full:
                    return made
        return None

    def _segments(self, entries: Sequence[Entry]) -> list[Segment]:
        """Markup is what the context has more than its contents, shared out evenly."""
        counts = [
            len(entry.spoken.ids) if entry.spoken.ids is not None else self.tokens.count(entry.content)
            for entry in entries
        ]
        markup = max(1, -(-(len(self.transcript) - sum(counts)) // max(1, len(entries))))
        return [
            Segment(
                entry.kind,
                count + markup,
                self.tokens.count(digest(entry.content)) + markup if entry.kind == "tool" else None,
            )
            for entry, count in zip(entries, counts, strict=True)
        ]

    async def _applied(
        self, plan: Plan, entries: Sequence[Entry], segments: Sequence[Segment], left: int
    ) -> list[Entry] | None:
        after: list[Entry] = []
        for step in plan.steps:
            entry = await self._entry(step, entries, segments, left)
            if entry is None:
                return None
            after.append(entry)
        return after

    def _whole(self, entries: list[Entry] | None) -> Made | None:
        """None where there is no history, or its messages are in an order that the template refuses."""
        if entries is None:
            return None
        conversation = Conversation(self.tokens, (), self.schemas)
        try:
            return Made(entries, conversation, conversation.replace(shown(entries)))
        except TemplateFault:
            return None

    async def _entry(
        self, step: Step, entries: Sequence[Entry], segments: Sequence[Segment], left: int
    ) -> Entry | None:
        if isinstance(step, Keep):
            return entries[step.number]
        if isinstance(step, Digest):
            was = entries[step.number].spoken.message
            return Entry("tool", Spoken(ChatMessage(role=was.role, content=digest(was.content))))
        if isinstance(step, ToNotes):
            return await self._noted(step, entries)
        return await self._summed_up(step, entries, segments, left)

    async def _noted(self, step: ToNotes, entries: Sequence[Entry]) -> Entry:
        for number in step.numbers:
            if entries[number].kind != "aside":
                await self.notes.add(entries[number].kind, entries[number].content)
        where = f"in {FOLDER}/ and " if self.notes.in_files else ""
        return aside(
            f"[Earlier messages are no longer shown. They are {where}in {len(self.notes)} notes: search them with the "
            "tool recall.]"
        )

    async def _summed_up(
        self, step: Summary, entries: Sequence[Entry], segments: Sequence[Segment], left: int
    ) -> Entry | None:
        """None where the policy has no room, or no tokens, to sum up in."""
        always = fixed(segments)
        old = [entries[number] for number in sorted({*step.numbers, *always})]
        asking = Conversation(self.tokens, (), self.schemas)
        try:
            prompt = asking.replace(shown([*old, aside(ASK)]))
        except TemplateFault:
            return None
        room = min(step.tokens, left, self.limit - len(prompt.ids))
        if room < step.tokens // 2 or room < 1:
            return None
        made = await self.sampler.sample(prompt.ids, room, self.summaries, "/summary")
        self.summaries += 1
        self.transcript.aside(prompt.ids, prompt.roles, made)
        text = self.tokens.plain(self.tokens.answer(made.token_ids)).strip()
        return aside(f"[Your summary of what is no longer shown]\n{text}")


def _newest(entries: Sequence[Entry], segments: Sequence[Segment], budget: int) -> list[Entry] | None:
    plan = Window().plan(segments, budget)
    return None if plan is None else [entries[kept.number] for kept in plan.steps if isinstance(kept, Keep)]
