"""A conversation with a policy, turn by turn, as an episode's code has it.

Invariant: what the policy said stays as the tokens that it sampled, an answer that was cut short included; a context
that is full forgets its oldest turns, never the system message. What does not fit is refused, and the talk is where it
was before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from services.rollout.chat import ChatCodec
from services.rollout.engines.base import Engine, GenerateRequest, Generation, Ids
from services.rollout.engines.listening import Heard, generate
from services.rollout.formats.calls import Call, Malformed
from services.rollout.formats.choose import choose
from services.rollout.formats.results import Answered, render_results
from services.rollout.tools.toolset import Toolset
from services.rollout.tools.workspace import WorkspaceTools
from services.rollout.turns.conversation import Conversation, Piece, Spoken
from services.rollout.turns.sampling import turn_seed
from services.rollout.turns.tokens import Tokens
from shared.contracts import ChatMessage, Role, ToolCall
from shared.errors import ContractError
from shared.sandbox.sessions.session import Session

TOOLS = ("bash", "python")
MOST_TURNS = 16
"""Of the policy, for one message of the person."""
MOST_CALLS = 16


@dataclass(frozen=True, slots=True)
class Manner:
    """How the policy is spoken to."""

    system: str = ""
    temperature: float = 1.0
    max_tokens: int = 512
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """The policy's answer to one message. `stop_reason`: stop, length, turns where it went on calling tools, or refused where
    there is none."""

    text: str
    tokens: int
    stop_reason: str
    tool_calls: tuple[ToolCall, ...] = ()


class NoRoomError(ContractError):
    """A message, or what its tools answered, that no context holds. Nothing of it was said."""


@dataclass(slots=True)
class Listener:
    """Who hears an answer while it is made; `turn_over` after each turn of the policy."""

    heard: Heard = lambda token: None
    turn_over: Callable[[], None] = lambda: None
    told: Callable[[ToolCall], None] = lambda call: None


@dataclass(slots=True)
class _State:
    """How far a talk came."""

    conversation: Conversation
    context: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    """That the last turn was sampled after, without the turn."""
    last: Ids | None = None
    """The last turn."""
    new: list[ChatMessage] = field(default_factory=list)
    """What follows the last turn and is in no context yet."""

    asked: str = ""
    """The person's newest message."""

    def branch(self) -> _State:
        return replace(self, conversation=self.conversation.branch(), new=list(self.new))


class Talk:
    """`say` one message after another. `session`: with the tools `bash` and `python` in it."""

    def __init__(
        self, engine: Engine, codec: ChatCodec, manner: Manner, session: Session | None = None
    ) -> None:
        self._engine = engine
        self._tokens = Tokens(codec.tokenizer, codec.stop_ids)
        self._manner = manner
        tools = WorkspaceTools(session)
        self._toolset = Toolset(tuple(tools.make(name) for name in TOOLS) if session else ())
        schemas = self._toolset.schemas()
        self._adapter = choose(self._tokens.template, self._tokens.render, schemas)
        # Templates that refuse a system message get its words in front of the first question.
        role: Role = "system" if self._adapter.systems else "user"
        first = (ChatMessage(role=role, content=manner.system),) if manner.system else ()
        self._now = _State(Conversation(self._tokens, (), schemas if self._adapter.tells else ()))
        self._first = first
        self._schemas = schemas
        self._turns = 0

    async def say(self, text: str, listener: Listener | None = None) -> Said:
        """The answer. Cancelled, what was sampled of it so far stays said.

        Raises `NoRoomError` for a message that fits no context, `GenerationFault`, `SandboxFault`.
        """
        before = self._now.branch()
        try:
            return await self._answer_to(text, listener or Listener())
        except NoRoomError:
            self._now = before
            raise

    async def _answer_to(self, text: str, hears: Listener) -> Said:
        self._now.asked = text
        self._add(ChatMessage(role="user", content=text))
        calls: list[ToolCall] = []
        count = 0
        for _ in range(MOST_TURNS):
            made = await self._turn(hears)
            count += len(made.token_ids)
            answer = self._tokens.answer(made.token_ids)
            if made.stop_reason == "length":
                return Said(answer, count, "length", tuple(calls))
            found = self._calls(made)
            if not found:
                return Said(answer, count, "stop", tuple(calls))
            await self._answered(found, calls, hears)
        return Said(answer, count, "turns", tuple(calls))

    def _calls(self, made: Generation) -> tuple[Call | Malformed, ...]:
        if not self._toolset.tools:
            return ()
        said = self._tokens.said(made.token_ids)
        return self._adapter.format.parse(
            f"<think>\n{said}" if self._now.conversation.thinks() else said
        ).calls

    async def _answered(
        self, calls: Sequence[Call | Malformed], records: list[ToolCall], hears: Listener
    ) -> None:
        def record(call: ToolCall) -> None:
            records.append(call)
            hears.told(call)

        answers: Sequence[Answered] = [Answered("", "error: interrupted by the person") for _ in calls]
        try:
            ran = await self._toolset.run(calls, most=MOST_CALLS, turn=self._turns - 1, record=record)
            answers = [Answered(answer.tool, self._tokens.plain(answer.text)) for answer in ran.answers]
        finally:
            for message in render_results(answers, self._adapter.role):
                self._add(message)

    def _add(self, message: ChatMessage) -> None:
        """Templates refuse two messages of a user in a row: they become one."""
        new = self._now.new
        if new and new[-1].role == message.role == "user":
            message = ChatMessage(role="user", content=f"{new.pop().content}\n\n{message.content}")
        new.append(message)

    async def _turn(self, hears: Listener) -> Generation:
        self._prepare()
        manner, context = self._manner, self._now.context
        request = GenerateRequest(
            request_id=f"talk/{self._turns}",
            prompt_ids=context,
            max_tokens=min(manner.max_tokens, self._engine.longest - len(context)),
            stop_ids=self._tokens.stop_ids,
            temperature=manner.temperature,
            seed=turn_seed(manner.seed, self._turns),
            exact=False,
        )
        heard: list[int] = []

        def hear(token: int) -> None:
            heard.append(token)
            hears.heard(token)

        self._turns += 1
        try:
            made = await generate(self._engine, request, hear)
            self._now.last = made.token_ids
            return made
        except asyncio.CancelledError:
            self._now.last = np.array(heard, dtype=np.int32)
            raise
        finally:
            hears.turn_over()

    def _prepare(self) -> None:
        """The context of the next turn, with room for an answer. Raises `NoRoomError`."""
        now = self._now
        if now.last is None:
            first, now.new = [*self._first, *now.new], []
            for message in first:
                self._add(message)
            opening = self._adapter.introduce(now.new, self._schemas)
            self._put(now.conversation.replace([Spoken(message) for message in opening]))
        else:
            self._put(now.conversation.advance(now.last, now.new))
        now.new = []
        most = self._engine.longest - min(self._manner.max_tokens, self._engine.longest // 4)
        while len(now.context) > most:
            self._put(now.conversation.replace(self._without_oldest(most)))

    def _put(self, piece: Piece) -> None:
        said = () if self._now.last is None else (self._now.last,)
        before = () if piece.rewritten else (self._now.context, *said)
        self._now.context = np.concatenate([*before, piece.ids])

    def _without_oldest(self, most: int) -> list[Spoken]:
        """From the next message of the person on. Raises `NoRoomError` where there is none left to forget."""
        spoken = list(self._now.conversation.spoken)
        first = 1 if spoken and spoken[0].message.role == "system" else 0
        users = [at for at in range(first + 1, len(spoken)) if spoken[at].message.role == "user"]
        if users:
            return [*spoken[:first], *spoken[users[0] :]]
        raise NoRoomError(self._refusal(most, answered=len(spoken) > first + 1))

    def _refusal(self, most: int, *, answered: bool) -> str:
        size = len(self._now.context)
        if answered:
            return (
                f"the message and what its tools answered make a context of {size} tokens, and there is room for {most}: "
                "ask for less at once"
            )
        count = self._tokens.count(self._now.asked)
        fits = most - (size - count)
        if fits < 1:
            return f"no message fits: a context has room for {most} tokens, and {size - count} are there before it"
        return f"the message has {count} tokens, and {fits} fit: say less"
