"""A conversation with a policy, turn by turn, as an episode's code has it.

Invariant: what the policy said stays as the tokens that it sampled, an answer that was cut short included; a context
that is full forgets its oldest turns, never the system message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from shared.errors import ConfigError
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
    """The policy's answer to one message. `stop_reason`: stop, length, or turns where it went on calling tools."""

    text: str
    tokens: int
    stop_reason: str
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(slots=True)
class Listener:
    """Who hears an answer while it is made; `turn_over` after each turn of the policy."""

    heard: Heard = lambda token: None
    turn_over: Callable[[], None] = lambda: None
    told: Callable[[ToolCall], None] = lambda call: None


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
        self._conversation = Conversation(self._tokens, (), schemas if self._adapter.tells else ())
        self._first = first
        self._schemas = schemas
        self._context: Ids = np.zeros(0, dtype=np.int32)
        self._last: Ids | None = None
        self._new: list[ChatMessage] = []
        """What follows the last turn and is in no context yet."""
        self._turns = 0

    async def say(self, text: str, listener: Listener | None = None) -> Said:
        """The answer. Cancelled, what was sampled of it so far stays said.

        Raises `ConfigError` for a message that does not fit the context alone, `GenerationFault`, `SandboxFault`.
        """
        hears = listener or Listener()
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
        return self._adapter.format.parse(f"<think>\n{said}" if self._conversation.thinks() else said).calls

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
        if self._new and self._new[-1].role == message.role == "user":
            message = ChatMessage(role="user", content=f"{self._new.pop().content}\n\n{message.content}")
        self._new.append(message)

    async def _turn(self, hears: Listener) -> Generation:
        self._prepare()
        manner, context = self._manner, self._context
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
            self._last = made.token_ids
            return made
        except asyncio.CancelledError:
            self._last = np.array(heard, dtype=np.int32)
            raise
        finally:
            hears.turn_over()

    def _prepare(self) -> None:
        """The context of the next turn, with room for an answer."""
        if self._last is None:
            first, self._new = [*self._first, *self._new], []
            for message in first:
                self._add(message)
            opening = self._adapter.introduce(self._new, self._schemas)
            self._put(self._conversation.replace([Spoken(message) for message in opening]))
        else:
            self._put(self._conversation.advance(self._last, self._new))
        self._new = []
        most = self._engine.longest - min(self._manner.max_tokens, self._engine.longest // 4)
        while len(self._context) > most:
            self._put(self._conversation.replace(self._without_oldest(most)))

    def _put(self, piece: Piece) -> None:
        before = (
            np.zeros(0, dtype=np.int32) if piece.rewritten else np.concatenate([self._context, self._said()])
        )
        self._context = np.concatenate([before, piece.ids])

    def _said(self) -> Ids:
        return np.zeros(0, dtype=np.int32) if self._last is None else self._last

    def _without_oldest(self, most: int) -> list[Spoken]:
        """From the next message of the person on. Raises `ConfigError` where there is none left to forget."""
        spoken = list(self._conversation.spoken)
        first = 1 if spoken and spoken[0].message.role == "system" else 0
        users = [at for at in range(first + 1, len(spoken)) if spoken[at].message.role == "user"]
        if not users:
            raise ConfigError(
                f"the message makes a context of {len(self._context)} tokens, and there is room for {most}: say less"
            )
        return [*spoken[:first], *spoken[users[0] :]]
