"""The contexts of one attempt by an agent, and which of them a request goes on with.

Invariant: a context only grows, by what the policy sampled and by what the program said after it; a request that says
the past otherwise begins a new one, in which turns of the policy keep the ids that they were sampled as. At most one
request samples in a context at a time: one that comes while it is busy begins its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.rollout.agent.asked import Asked, Uttered, arguments_key, as_call
from services.rollout.engines.base import Generation, Ids
from services.rollout.formats.choose import Adapter, choose
from services.rollout.formats.results import Answered, render_results
from services.rollout.turns.conversation import Conversation, Piece, Spoken
from services.rollout.turns.tokens import Tokens
from services.rollout.turns.transcript import Transcript
from shared.contracts import ChatMessage

_KEY = tuple[Uttered, ...]


@dataclass(slots=True)
class Line:
    """One context. `said`: ids of the last turn where the program has not gone on after it yet."""

    adapter: Adapter
    conversation: Conversation
    tools: str
    history: _KEY = ()
    transcript: Transcript = field(default_factory=Transcript)
    said: Ids | None = None
    busy: bool = False

    def put(self, piece: Piece) -> None:
        if piece.rewritten:
            self.transcript.fork(piece.ids, piece.roles)
        else:
            self.transcript.given(piece.ids, piece.roles)

    def goes_on(self, messages: _KEY) -> bool:
        """`messages` are this context's and something new; or exactly what it waits to answer since a request that
        was dropped."""
        size = len(self.history)
        if self.busy or messages[:size] != self.history:
            return False
        if self.said is None:
            return len(messages) == size
        new = messages[size:]
        return bool(new) and all(message.role != "assistant" for message in new)


class Lines:
    """`begin` gives a busy context that ends with the opening of an answer; then `answered` or `dropped`."""

    def __init__(self, tokens: Tokens, form: str = "") -> None:
        self._tokens = tokens
        self._form = form
        self._lines: list[Line] = []
        self._sampled: dict[Uttered, Ids] = {}
        """What each turn of the policy was sampled as; of two that say the same the later."""

    @property
    def all(self) -> Sequence[Line]:
        """In the order in which they began."""
        return self._lines

    def begin(self, asked: Asked) -> Line:
        """Raises `TemplateFault` where the chat template does not render the messages."""
        tools = arguments_key(list(asked.schemas))
        known = [line for line in self._lines if line.tools == tools and line.goes_on(asked.messages)]
        line = max(known, key=lambda one: len(one.history), default=None)
        if line is None:
            line = self._forked(asked, tools)
            self._lines.append(line)
        elif line.said is not None:
            self._grow(line, asked)
        line.history = asked.messages
        line.busy = True
        return line

    def answered(self, line: Line, made: Generation, uttered: Uttered) -> None:
        """`uttered`: the turn as the program is told it."""
        line.transcript.sampled(made)
        line.said = made.token_ids
        line.history = (*line.history, uttered)
        line.busy = False
        self._sampled[uttered] = made.token_ids

    def dropped(self, line: Line) -> None:
        """Nobody waits for the answer any more: the same request again goes on here."""
        line.busy = False

    def _grow(self, line: Line, asked: Asked) -> None:
        assert line.said is not None
        new = self._chat(line.adapter, asked.messages[len(line.history) :], asked)
        said, line.said = line.said, None
        try:
            line.put(line.conversation.advance(said, new))
        except BaseException:
            line.history = ()  # nothing goes on here: what the template refused is half said
            line.busy = True
            raise

    def _forked(self, asked: Asked, tools: str) -> Line:
        adapter = choose(self._tokens.template, self._tokens.render, asked.schemas, self._form)
        messages = adapter.introduce(self._chat(adapter, asked.messages, asked), asked.schemas)
        conversation = Conversation(self._tokens, (), asked.schemas if adapter.tells else ())
        line = Line(adapter, conversation, tools)
        turns = iter([message for message in asked.messages if message.role == "assistant"])
        spoken = [
            self._spoken(message, next(turns)) if message.role == "assistant" else Spoken(message)
            for message in messages
        ]
        line.put(conversation.replace(spoken))
        return line

    def _spoken(self, message: ChatMessage, uttered: Uttered) -> Spoken:
        """A turn that was sampled here stands as it was sampled."""
        ids = self._sampled.get(uttered)
        if ids is None:
            return Spoken(message)
        return Spoken(ChatMessage(role="assistant", content=self._tokens.said(ids)), ids)

    def _chat(self, adapter: Adapter, messages: Sequence[Uttered], asked: Asked) -> list[ChatMessage]:
        """For the template. What the program says becomes no special token: it may hold what a tool printed."""
        found: list[ChatMessage] = []
        answers: list[Answered] = []
        for message in (*messages, None):
            if message is not None and message.role == "tool":
                answers.append(
                    Answered(asked.names.get(message.call_id, "tool"), self._tokens.plain(message.content))
                )
                continue
            if answers:
                found += render_results(answers, adapter.role)
                answers = []
            if message is not None:
                self._add(found, self._message(adapter, message), joins=adapter.role == "user")
        return found

    def _message(self, adapter: Adapter, message: Uttered) -> ChatMessage:
        content = message.content if message.role == "system" else self._tokens.plain(message.content)
        if message.role == "assistant" and message.calls:
            content = adapter.format.render([as_call(name, key) for name, key in message.calls], content)
        return ChatMessage(role=message.role, content=content)

    @staticmethod
    def _add(found: list[ChatMessage], message: ChatMessage, *, joins: bool) -> None:
        """Where results are told by a user, a user's next words are joined to them: templates refuse two in a row."""
        if joins and found and found[-1].role == message.role == "user":
            message = ChatMessage(role="user", content=f"{found.pop().content}\n\n{message.content}")
        found.append(message)
