"""A conversation under a chat template, as text and as tokens.

Invariant: tokens that were given out are never made again. A turn adds the ids of what the template writes after the
sampled end token, and nothing before it changes; where the template would write the earlier text in another way, the
conversation says so and gives a whole new context, in which sampled turns still have the ids they were sampled as.

The test is to render and compare. Templates that trim the white space around an answer are not taken for rewriting:
the policy has seen its own white space, and only that is trained on.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.rollout.chat import TemplateFault
from services.rollout.engines.base import Ids
from services.rollout.formats.choose import Schemas
from services.rollout.turns.layout import Place, layout
from services.rollout.turns.tokens import Tokens
from shared.contracts import ChatMessage, RoleSpan

FULL_MESSAGES = 256
"""Up to here every turn renders everything (3 µs a message). Past it, beginning and end: see `_after`."""
_TAIL = 32
_MOST_RENDERED = 48
_NONE: Ids = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Spoken:
    """A message; `ids` int32[n] where the policy sampled it, its end token included."""

    message: ChatMessage
    ids: Ids | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """ids int32[n] with role spans of total length n; where a template writes messages out of order and there are many
    of them, the spans of a whole context tell only its opening from the rest. `rewritten`: not a continuation but a
    whole context."""

    ids: Ids
    roles: tuple[RoleSpan, ...]
    rewritten: bool = False


class Conversation:
    """Of one attempt. `schemas` are given to the template where it tells of tools itself."""

    def __init__(self, tokens: Tokens, messages: Sequence[ChatMessage], schemas: Schemas = ()) -> None:
        self._tokens = tokens
        self._schemas = schemas
        self._spoken = [Spoken(message) for message in messages]
        self._parts: list[str] = []
        self._opening = ""
        self._check_at = FULL_MESSAGES

    def branch(self) -> Conversation:
        """The same so far; what is said in one of the two from here on is not said in the other."""
        other = copy.copy(self)
        other._parts = list(self._parts)
        return other

    @property
    def spoken(self) -> Sequence[Spoken]:
        return self._spoken

    def open(self) -> Piece:
        """The whole context, and the opening of an answer. Raises `TemplateFault`."""
        plain = self._rendered(self._spoken, opened=False)
        text = self._rendered(self._spoken, opened=True)
        if not text:
            raise TemplateFault("the chat template renders an empty prompt; correct model.chat_template")
        self._opening = text[len(plain) :] if text.startswith(plain) else ""
        self._parts = [text]
        places = self._places(text)
        ids, starts = self._encode_whole(text, places)
        return Piece(ids, self._roles(text, starts, places), rewritten=True)

    def replace(self, spoken: Sequence[Spoken]) -> Piece:
        """Another history from here on: a whole context. Raises `TemplateFault`."""
        self._spoken = list(spoken)
        self._check_at = max(FULL_MESSAGES, len(spoken) * 5 // 4)
        return self.open()

    def advance(self, ids: Ids, new: Sequence[ChatMessage]) -> Piece:
        """After the policy's turn `ids` and the answers to it. Raises `TemplateFault`."""
        said = self._tokens.said(ids)
        before = self._spoken
        turn = Spoken(ChatMessage(role="assistant", content=said), ids)
        self._spoken = [*before, turn, *(Spoken(message) for message in new)]
        rest = self._after(before, said)
        if rest is None:
            return self.replace(self._spoken)
        self._parts += [said, rest]
        return self._continued(ids, rest, new[-1].role if new else "assistant")

    def thinks(self) -> bool:
        """The opening of an answer begins its reasoning, so the sampled text begins inside it."""
        return self._opening.rstrip().endswith("<think>")

    def _after(self, before: Sequence[Spoken], said: str) -> str | None:
        """What the template writes after the turn `said`; None where it rewrites what came before.

        Long conversations are rendered by their beginning and end, from an answer on, so that a turn costs the same
        however many came before; and whole each time they have grown by a quarter, which bounds the cost of all turns
        together to a few times that of the last. A rewriting of the middle is then found late. The tokens are those
        that the policy saw either way.
        """
        if len(self._spoken) <= self._check_at:
            if len(self._spoken) > FULL_MESSAGES:
                return self._after_short(before, said)
            return self._rest("".join(self._parts), said, self._rendered(self._spoken, opened=True))
        self._check_at = len(self._spoken) * 5 // 4
        return self._rest("".join(self._parts), said, self._rendered(self._spoken, opened=True))

    def _after_short(self, before: Sequence[Spoken], said: str) -> str | None:
        first = next(
            (at for at, spoken in enumerate(before) if spoken.message.role == "assistant"), len(before)
        )
        at = next(
            (at for at in range(len(before) - _TAIL, len(before)) if before[at].message.role == "assistant"),
            len(before),
        )
        head, tail = list(before[:first]), list(before[at:])
        new = self._spoken[len(before) :]
        return self._rest(
            self._rendered([*head, *tail], opened=True),
            said,
            self._rendered([*head, *tail, *new], opened=True),
        )

    @staticmethod
    def _rest(before: str, said: str, after: str) -> str | None:
        for text in dict.fromkeys((said, said.strip(), said.rstrip(), said.lstrip())):
            if after.startswith(before + text):
                return after[len(before) + len(text) :]
        return None

    def _continued(self, ids: Ids, rest: str, role: str) -> Piece:
        added, starts, text = self._encode_after(ids, rest)
        opening = len(self._opening) if self._opening and text.endswith(self._opening) else 0
        body = int(np.searchsorted(starts, len(text) - opening))
        spans = [(body, role), (len(added) - body, "assistant")]
        return Piece(added, _spans(spans))

    def _encode_after(self, ids: Ids, rest: str) -> tuple[Ids, NDArray[np.int64], str]:
        """Ids of `rest` where it follows the sampled `ids`, and the text that they are of: without the end token that
        the template writes, for which the sampled one stands.

        They are encoded behind that token: tokenizers that begin every text with a space would else put one here.
        """
        last = int(ids[-1]) if len(ids) else -1
        if last not in self._tokens.stop_ids:
            return (*self._tokens.encode(rest), rest)
        for stop in self._tokens.stops.values():
            if rest.startswith(stop):
                rest = rest[len(stop) :]
                break
        anchor = self._tokens.stops[last]
        made, starts = self._tokens.encode(anchor + rest)
        if len(made) and int(made[0]) == last:
            return made[1:], starts[1:] - len(anchor), rest
        return (*self._tokens.encode(rest), rest)

    def _encode_whole(self, text: str, places: Sequence[Place] | None) -> tuple[Ids, NDArray[np.int64]]:
        """Ids of a whole context, and where in `text` each begins. Sampled turns have their own ids where the
        template writes them as they were said."""
        ids: list[Ids] = []
        starts: list[NDArray[np.int64]] = []
        at, before = 0, _NONE
        for spoken, place in zip(self._spoken, places or (), strict=False):
            if spoken.ids is not None and place.exact:
                self._encode_part(text[at : place.start], at, before, ids, starts)
                ids.append(spoken.ids)
                starts.append(np.full(len(spoken.ids), place.start, dtype=np.int64))
                at, before = place.end, spoken.ids
        self._encode_part(text[at:], at, before, ids, starts)
        return np.concatenate(ids), np.concatenate(starts)

    def _encode_part(
        self, part: str, at: int, before: Ids, ids: list[Ids], starts: list[NDArray[np.int64]]
    ) -> None:
        made, begins, left = self._encode_after(before, part)
        ids.append(made)
        starts.append(begins + (at + len(part) - len(left)))

    def _roles(
        self, text: str, starts: NDArray[np.int64], places: Sequence[Place] | None
    ) -> tuple[RoleSpan, ...]:
        spans: list[tuple[int, str]] = []
        done = 0
        for end, spoken in zip(self._ends(text, places), self._spoken, strict=True):
            token = max(done, int(np.searchsorted(starts, end)))
            spans.append((token - done, spoken.message.role))
            done = token
        return _spans([*spans, (len(starts) - done, "assistant")])

    def _ends(self, text: str, places: Sequence[Place] | None) -> list[int]:
        """Where in `text` each message ends, its markup included: as far as the conversation up to it is written the
        same alone. What stands between two messages is looked at once for each of its kinds, so that a conversation
        of thousands is rendered a few times, not thousands of times."""
        if places is None and len(self._spoken) > _MOST_RENDERED:
            return [len(text) - len(self._opening)] * len(self._spoken)
        ends: list[int] = []
        closings: dict[str, int] = {}
        for number in range(len(self._spoken)):
            if places is None:
                ends.append(self._written_alone(text, number))
                continue
            end = places[number].end
            following = places[number + 1].start if number + 1 < len(places) else len(text)
            between = text[end:following]
            if between not in closings:
                written = self._written_alone(text, number)
                closings[between] = max(0, min(written - end, len(between)))
            ends.append(end + closings[between])
        return ends

    def _written_alone(self, text: str, number: int) -> int:
        try:
            return _common(self._rendered(self._spoken[: number + 1], opened=False), text)
        except TemplateFault:
            return 0  # a template that wants a user's message after a system's: they become one span

    def _places(self, text: str) -> list[Place] | None:
        try:
            return layout(text, [spoken.message.content for spoken in self._spoken], self._with_contents)
        except TemplateFault:
            return None  # a template that reads the contents, and refuses the marks

    def _with_contents(self, contents: Sequence[str]) -> str:
        roles = [spoken.message.role for spoken in self._spoken]
        messages = [
            Spoken(ChatMessage(role=role, content=content))
            for role, content in zip(roles, contents, strict=True)
        ]
        return self._rendered(messages, opened=True)

    def _rendered(self, spoken: Sequence[Spoken], *, opened: bool) -> str:
        messages = [{"role": item.message.role, "content": item.message.content} for item in spoken]
        return self._tokens.render(messages, self._schemas, opened=opened)


def _common(part: str, text: str) -> int:
    """Length of the common beginning."""
    if text.startswith(part):
        return len(part)
    return next(at for at, (left, right) in enumerate(zip(part, f"{text}\0", strict=False)) if left != right)


def _spans(parts: Sequence[tuple[int, str]]) -> tuple[RoleSpan, ...]:
    """Without empty ones, neighbours of one role joined."""
    spans: list[tuple[int, str]] = []
    for length, role in parts:
        if spans and spans[-1][1] == role:
            spans[-1] = (spans[-1][0] + length, role)
        elif length:
            spans.append((length, role))
    return tuple(RoleSpan.model_validate({"length": length, "role": role}) for length, role in spans)
