"""One attempt's side of the endpoint: its contexts, its budgets, and why it is over.

Invariant: every token that a program was answered with is in the attempt's sequences, as it was sampled, and nothing
else is masked in; no budget is passed, whatever is asked at the same time; after `close` nothing is sampled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from services.rollout.agent.asked import Asked, RefusedError, Uttered, arguments_key
from services.rollout.agent.lines import Line, Lines
from services.rollout.chat import TemplateFault
from services.rollout.engines.base import Generation, runs_of
from services.rollout.engines.listening import Heard
from services.rollout.formats.calls import THINK, Call
from services.rollout.formats.choose import Adapter
from services.rollout.turns.budgets import Budgets, Room, Spent
from services.rollout.turns.sampling import Sampler, Speaks
from services.rollout.turns.tokens import Tokens
from shared.contracts import NOT_SAMPLED, Sampling, Sequence, StopReason, ToolCall

MOST_PARALLEL = 16
"""Requests of one attempt at once; more are told to come again (429)."""
MOST_REFUSED = 64
"""Requests that were refused; the next ends the attempt: a program that asks on and on learns nothing."""
MOST_RESULT = 6000
"""Characters kept of a tool's result in the record of its call; all of it is in the context."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One turn of the policy. Token counts are of its context and of itself."""

    text: str
    calls: tuple[tuple[str, Call], ...]
    """Id and call."""
    finish: Literal["stop", "length", "tool_calls"]
    prompt_tokens: int
    sampled_tokens: int


@dataclass(slots=True)
class _Called:
    call: Call
    turn: int
    at: float


@dataclass(slots=True)
class Desk:
    """`complete` one request; `over` is set when the attempt must end, with `ended_by` or `fault`.

    `speaks` gives who takes the turns, by how the program's tools are told of.
    """

    tokens: Tokens
    budgets: Budgets
    sampling: Sampling
    speaks: Callable[[Adapter], Speaks]
    strict: bool = True
    form: str = ""
    told: Callable[[ToolCall], None] = lambda call: None
    clock: Callable[[], float] = time.monotonic
    over: asyncio.Event = field(default_factory=asyncio.Event)
    ended_by: StopReason | None = None
    fault: Exception | None = None
    answer: str = ""
    malformed: int = 0
    answered: int = 0
    refused: int = 0
    refusal: str = ""
    """The last one."""
    records: list[ToolCall] = field(default_factory=list)
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    _lines: Lines = field(init=False)
    _spent: Spent = field(default_factory=Spent)
    _running: dict[int, int] = field(default_factory=dict)
    """Number of a turn that is sampled now → tokens that it may take."""
    _left: asyncio.Condition = field(default_factory=asyncio.Condition)
    _open: dict[str, _Called] = field(default_factory=dict)
    _last: StopReason = "stop"
    _closed: bool = False

    def __post_init__(self) -> None:
        self._lines = Lines(self.tokens, self.form)

    async def complete(self, asked: Asked, heard: Heard | None = None) -> Answer:
        """Raises `RefusedError` for what the program did wrong or may not do any more. What else is raised is a fault
        of ours: it ends the attempt and is in `fault`. Cancelled, nothing of the turn is recorded."""
        try:
            return await self._complete(asked, heard)
        except (RefusedError, asyncio.CancelledError):
            raise
        except TemplateFault as error:
            raise RefusedError(400, str(error), param="messages") from error
        except Exception as error:
            self.fault = self.fault or error
            self.over.set()
            raise

    def refuse(self, error: RefusedError) -> None:
        """Counts it, and ends an attempt that asks on and on."""
        self.refused += 1
        self.refusal = str(error)
        if self.refused > MOST_REFUSED:
            self.ended_by = self.ended_by or "calls"
            self.over.set()

    def close(self) -> None:
        self._closed = True

    @property
    def turns(self) -> int:
        return self._spent.turns

    @property
    def stop_reason(self) -> StopReason:
        """Of a program that ended by itself: the budget that it met, or how the policy's last turn ended."""
        return self.ended_by or self._last

    def sequences(self) -> tuple[Sequence, ...]:
        """In the order in which the contexts began; those of which nothing was sampled are left out."""
        return tuple(
            sequence
            for line in self._lines.all
            if line.transcript.sampled_tokens
            for sequence in line.transcript.finished()
        )

    def versions(self) -> tuple[int, int]:
        """First and last that sampled a token; NOT_SAMPLED where none did."""
        made = [line.transcript for line in self._lines.all if line.transcript.sampled_tokens]
        first = min((one.first_version for one in made), default=NOT_SAMPLED)
        return first, max((one.last_version for one in made), default=NOT_SAMPLED)

    async def _complete(self, asked: Asked, heard: Heard | None) -> Answer:
        self._check_open()
        if len(self._running) >= MOST_PARALLEL:
            raise RefusedError(
                429, f"over {MOST_PARALLEL} requests at once: wait for some", code="too_many_requests"
            )
        self._read_results(asked)
        line = self._lines.begin(asked)
        before = len(line.transcript)
        try:
            made, binds = await self._sampled(line, asked, heard)
        except BaseException:
            self._lines.dropped(line)
            raise
        return self._recorded(line, asked, made, binds, before)

    def _check_open(self) -> None:
        if self._closed or self.over.is_set():
            raise RefusedError(403, "the attempt is over", code="attempt_over")

    async def _sampled(self, line: Line, asked: Asked, heard: Heard | None) -> tuple[Generation, StopReason]:
        """One turn, and the budget that ended it if all of its room is used."""
        room = await self._room(len(line.transcript))
        number = self._spent.turns
        while number in self._running:
            number += 1
        limit = min(room.tokens, asked.max_tokens)
        self._running[number] = limit
        try:
            speaker = self.speaks(line.adapter)
            if heard is not None and isinstance(speaker, Sampler):
                speaker = replace(speaker, heard=heard)
            made = cut(await speaker.sample(line.transcript.ids, limit, number), asked.stops, self.tokens)
            self._check_open()  # what was sampled after the end is nobody's
            self._spent = self._spent.turn(len(made.token_ids))
        finally:
            del self._running[number]
            async with self._left:
                self._left.notify_all()
        return made, room.binds if limit == room.tokens else "stop"

    async def _room(self, context: int) -> Room:
        """Waits where others that run now may leave some. Raises `RefusedError` where there is none."""
        while True:
            reserved = replace(
                self._spent,
                turns=self._spent.turns + len(self._running),
                tokens=self._spent.tokens + sum(self._running.values()),
            )
            room = reserved.room(self.budgets, context)
            if isinstance(room, Room):
                return room
            ended = self._spent.room(self.budgets, context)
            if not isinstance(ended, Room):
                self.ended_by = self.ended_by or ended
                raise _spent_up(ended)
            async with self._left:
                await self._left.wait()
            self._check_open()

    def _recorded(self, line: Line, asked: Asked, made: Generation, binds: StopReason, before: int) -> Answer:
        self.answered += 1
        self.queued_s += made.timings.queued
        self.prefill_s += made.timings.prefill
        self.decode_s += made.timings.decode
        self.answer = self.tokens.answer(made.token_ids)
        self._last = binds if made.stop_reason == "length" else "stop"
        text, calls = self._read(line, asked, made)
        uttered = Uttered(
            "assistant", text.strip(), tuple((c.name, arguments_key(c.arguments)) for _, c in calls)
        )
        self._lines.answered(line, made, uttered)
        now = self.clock()
        self._open.update({number: _Called(call, self._spent.turns - 1, now) for number, call in calls})
        finish: Literal["stop", "length", "tool_calls"] = (
            "tool_calls" if calls else "length" if made.stop_reason == "length" else "stop"
        )
        return Answer(text, calls, finish, before, len(made.token_ids))

    def _read(self, line: Line, asked: Asked, made: Generation) -> tuple[str, tuple[tuple[str, Call], ...]]:
        """The text and the calls of a turn. What only looks like a call stays text: the program judges it."""
        text = _up_to(self.answer, asked.stops)
        if not asked.schemas or made.stop_reason == "length":
            return text, ()
        said = _up_to(self.tokens.said(made.token_ids), asked.stops)
        thinks = line.conversation.thinks()
        parsed = line.adapter.format.parse(f"{THINK}\n{said}" if thinks else said)
        self.malformed += parsed.malformed
        found = [call for call in parsed.calls if isinstance(call, Call)]
        if not found:
            return text, ()
        numbered = ((f"call_{self._spent.turns}_{at}", call) for at, call in enumerate(found))
        return parsed.said.removeprefix(THINK).strip(), tuple(numbered)

    def _read_results(self, asked: Asked) -> None:
        """Messages of tools that answer calls of ours, recorded once each. Raises `RefusedError` past the budget."""
        if self._spent.calls >= self.budgets.calls:
            self.ended_by = self.ended_by or "calls"
            raise _spent_up("calls")
        for message in asked.messages:
            called = self._open.pop(message.call_id, None) if message.role == "tool" else None
            if called is None:
                continue
            self._spent = self._spent.called(1)
            record = ToolCall(
                name=called.call.name,
                arguments=called.call.arguments,
                result=message.content[:MOST_RESULT],
                seconds=self.clock() - called.at,
                turn=called.turn,
            )
            self.records.append(record)
            self.told(record)


def cut(made: Generation, stops: tuple[str, ...], tokens: Tokens) -> Generation:
    """`made` up to the token with which the text holds one of `stops`: a prefix of a sample is a sample."""
    if not stops or _up_to(tokens.answer(made.token_ids), stops) == tokens.answer(made.token_ids):
        return made
    low, high = 1, len(made.token_ids)
    while low < high:  # text only grows: the first length that holds a stop
        middle = (low + high) // 2
        if any(stop in tokens.answer(made.token_ids[:middle]) for stop in stops):
            high = middle
        else:
            low = middle + 1
    versions = [version for length, version in made.versions for _ in range(length)]
    return replace(
        made,
        token_ids=made.token_ids[:low],
        logprobs=made.logprobs[:low],
        versions=runs_of(versions[:low]),
        stop_reason="stop",
    )


def _up_to(text: str, stops: tuple[str, ...]) -> str:
    places = [text.find(stop) for stop in stops if stop in text]
    return text[: min(places)] if places else text


def _spent_up(reason: StopReason) -> RefusedError:
    """403: clients try 429 and 5xx again, and here nothing would change."""
    known = {
        "context": ("the context is full", "context_length_exceeded"),
        "turns": ("all turns of this attempt are used", "budget_turns"),
        "tokens": ("all tokens of this attempt are used", "budget_tokens"),
        "calls": ("all tool calls of this attempt are used", "budget_calls"),
    }
    text, code = known.get(reason, (f"the attempt is over: {reason}", "attempt_over"))
    return RefusedError(400 if reason == "context" else 403, text, code=code)
