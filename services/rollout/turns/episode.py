"""One attempt of many turns: the policy speaks, its tools answer.

Invariant: it ends, with one stop reason, whatever the policy does; what was sampled is in its sequences as it was
sampled, up to the turn that a deadline cut off. A fault of ours raises: it is in no sequence and no answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from services.rollout.engines.base import Generation
from services.rollout.engines.cut import Cut, unless_cut
from services.rollout.formats.calls import THINK, Call
from services.rollout.formats.choose import Adapter
from services.rollout.formats.results import Answered, render_results
from services.rollout.tools.toolset import RunsCalls
from services.rollout.turns.budgets import Budgets, Room, Spent, no_room
from services.rollout.turns.conversation import Conversation, Piece, Spoken
from services.rollout.turns.history import Entry, entries_of, turn_of
from services.rollout.turns.making_room import RoomMaker
from services.rollout.turns.sampling import Speaks
from services.rollout.turns.tokens import Tokens
from services.rollout.turns.transcript import Transcript
from shared.contracts import ChatMessage, StopReason, ToolCall
from shared.contracts import Sequence as TokenSequence


@dataclass(frozen=True, slots=True)
class End:
    """What an attempt left. Seconds are of wall time."""

    sequences: tuple[TokenSequence, ...]
    stop_reason: StopReason
    final_answer: str
    tool_calls: tuple[ToolCall, ...]
    malformed_calls: int
    turns: int
    first_version: int
    last_version: int
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    tools_s: float = 0.0
    artifacts: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""
    """Why nothing could be sampled."""


@dataclass(slots=True)
class _Seconds:
    queued: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    tools: float = 0.0


@dataclass(slots=True)
class Episode:
    """Used once. `check_alive` raises `SandboxFault` where the attempt's sandbox is no longer its own."""

    tokens: Tokens
    adapter: Adapter
    toolset: RunsCalls
    budgets: Budgets
    sampler: Speaks
    room_maker: Callable[[Transcript], RoomMaker] | None = None
    check_alive: Callable[[], None] = lambda: None
    cut: Cut | None = None
    """Asked while it runs: it ends as `cancelled`, with what was sampled."""
    told: Callable[[ToolCall], None] = lambda call: None
    """Of every call as soon as it is over."""
    clock: Callable[[], float] = time.monotonic
    _transcript: Transcript = field(default_factory=Transcript, init=False)
    _spent: Spent = field(default_factory=Spent, init=False)
    _entries: list[Entry] = field(default_factory=list, init=False)
    _records: list[ToolCall] = field(default_factory=list, init=False)
    _malformed: int = field(default=0, init=False)
    _answer: str = field(default="", init=False)
    _fault: str = field(default="", init=False)
    _seconds: _Seconds = field(default_factory=_Seconds, init=False)

    async def run(self, messages: Sequence[ChatMessage]) -> End:
        """Raises `TemplateFault`, `GenerationFault`, `ToolFault`, `SandboxFault`."""
        schemas = self.toolset.schemas()
        introduced = self.adapter.introduce(messages, schemas)
        conversation = Conversation(self.tokens, introduced, schemas if self.adapter.tells else ())
        self._entries = entries_of(introduced)
        self._put(conversation.open())
        clock = asyncio.timeout(self.budgets.wall_s)
        try:
            async with clock:
                stop = await unless_cut(self.cut, self._turns(conversation)) or "cancelled"
        except TimeoutError:
            if not clock.expired():
                raise
            stop = "deadline"
        return self._end(stop)

    async def _turns(self, conversation: Conversation) -> StopReason:
        maker = self.room_maker(self._transcript) if self.room_maker else None
        while self.cut is None or not self.cut.asked:
            if maker is not None and maker.needed():
                conversation = await self._make_room(maker) or conversation
            room = self._spent.room(self.budgets, len(self._transcript))
            if not isinstance(room, Room):
                if room == "context" and not self._spent.turns:
                    self._fault = no_room(len(self._transcript), self.budgets.context_tokens)
                return room
            made = await self.sampler.sample(self._transcript.ids, room.tokens, self._spent.turns)
            if made.stop_reason == "cut" and not len(made.token_ids):
                break
            stop = await self._turn(made, room, conversation)
            if stop is not None:
                return stop
        return "cancelled"

    async def _turn(self, made: Generation, room: Room, conversation: Conversation) -> StopReason | None:
        """After one turn was sampled: its calls, and their answers in the context. The reason where it was the last."""
        self._take(made)
        self._answer = self.tokens.answer(made.token_ids)
        if made.stop_reason == "length":
            return room.binds
        if made.stop_reason == "cut":
            return "cancelled"
        said = self.tokens.said(made.token_ids)
        # Where the template opens the reasoning itself, what was sampled begins inside of it.
        parsed = self.adapter.format.parse(f"{THINK}\n{said}" if conversation.thinks() else said)
        if not parsed.calls or not self.toolset.tools:
            return "stop"
        most = self._spent.calls_now(self.budgets)
        if not most and any(isinstance(call, Call) for call in parsed.calls):
            return "calls"
        self._malformed += parsed.malformed
        began = self.clock()
        try:
            ran = await self.toolset.run(
                parsed.calls, most=most, turn=self._spent.turns - 1, record=self._record
            )
        finally:
            self._seconds.tools += self.clock() - began
        self.check_alive()
        self._spent = self._spent.called(ran.calls)
        if ran.submission is not None:
            self._answer = ran.submission
            return "stop"
        ended = self._spent.over(self.budgets)
        if ended is None:
            self._answered(made, ran.answers, conversation)
        return ended

    def _answered(self, made: Generation, answers: Sequence[Answered], conversation: Conversation) -> None:
        plain = [Answered(answer.tool, self.tokens.plain(answer.text)) for answer in answers]
        results = render_results(plain, self.adapter.role)
        self._put(conversation.advance(made.token_ids, results))
        said = ChatMessage(role="assistant", content=self.tokens.said(made.token_ids))
        self._entries += turn_of(Spoken(said, made.token_ids), results)

    async def _make_room(self, maker: RoomMaker) -> Conversation | None:
        """As far as it can be made: where it cannot, the context's own limit ends the attempt."""
        before = self._transcript.sampled_tokens
        try:
            made = await maker.make(self._entries, self.budgets.tokens - self._spent.tokens)
        finally:
            self._spent = self._spent.sampled(self._transcript.sampled_tokens - before)
        if made is None:
            return None
        self._entries = made.entries
        self._put(made.piece)
        return made.conversation

    def _record(self, call: ToolCall) -> None:
        self._records.append(call)
        self.told(call)

    def _put(self, piece: Piece) -> None:
        if piece.rewritten:
            self._transcript.fork(piece.ids, piece.roles)
        else:
            self._transcript.given(piece.ids, piece.roles)

    def _take(self, made: Generation) -> None:
        self._transcript.sampled(made)
        self._spent = self._spent.turn(len(made.token_ids))
        self._seconds.queued += made.timings.queued
        self._seconds.prefill += made.timings.prefill
        self._seconds.decode += made.timings.decode

    def _end(self, stop: StopReason) -> End:
        return End(
            sequences=self._transcript.finished(),
            stop_reason=stop,
            final_answer=self._answer,
            tool_calls=tuple(self._records),
            malformed_calls=self._malformed,
            turns=self._spent.turns,
            first_version=self._transcript.first_version,
            last_version=self._transcript.last_version,
            queued_s=self._seconds.queued,
            prefill_s=self._seconds.prefill,
            decode_s=self._seconds.decode,
            tools_s=self._seconds.tools,
            fault=self._fault,
        )
