"""A JSONL file that a stage learns from: demonstrations or pairs, one a line.

Invariant: a file that is accepted holds nothing but usable lines; the first one that is not is named with its number
and the mend. Which line is learnt when is a pure function of (run seed, stage, position), every line once an epoch.

`sft`: {"messages": [{"role", "content"}, …]}, the last one the assistant's: that is what is imitated.
`preference`: {"prompt": "text" or messages, "chosen": "text", "rejected": "text"}; `messages` may be said for `prompt`,
and an answer may be a list of one assistant message.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shared.contracts.task import ChatMessage
from shared.errors import ConfigError, ContractError
from shared.settings import Settings, StageSettings

Messages = tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """`rejected` is empty for a demonstration."""

    prompt: Messages
    answer: Messages
    rejected: Messages = ()


class DataSet:
    """The lines of one file in the order in which a stage learns from them."""

    def __init__(self, name: str, digest: str, lines: tuple[Line, ...], order_seed: str) -> None:
        self.name = name
        self.digest = digest
        """sha256 of the file: positions mean nothing in another one."""
        self._lines = lines
        self._order_seed = order_seed
        self._epoch: tuple[int, list[int]] = (-1, [])

    def __len__(self) -> int:
        return len(self._lines)

    def number_at(self, position: int) -> int:
        """Which line (from 0) is learnt at `position`: each epoch is a shuffle of its own."""
        epoch, at = divmod(position, len(self._lines))
        if self._epoch[0] != epoch:
            order = list(range(len(self._lines)))
            random.Random(f"{self._order_seed}/{epoch}").shuffle(order)
            self._epoch = (epoch, order)
        return self._epoch[1][at]

    def line(self, number: int) -> Line:
        return self._lines[number]


def load_data(stage: StageSettings, *, run_seed: int = 0, stage_index: int = 0) -> DataSet:
    """Raises `ConfigError` for a file that is not there and `ContractError` for a line that cannot be used."""
    raw = _read(stage.data)
    parse = _demonstration if stage.kind == "sft" else _pair
    lines = []
    for number, text in enumerate(raw.split(b"\n"), start=1):
        if text.strip():
            try:
                lines.append(parse(_document(text)))
            except ValueError as error:
                raise ContractError(f"{stage.data}: line {number}: {error}") from error
    if not lines:
        raise ContractError(f"{stage.data} holds no line: give at least one JSON object")
    return DataSet(
        Path(stage.data).name, hashlib.sha256(raw).hexdigest(), tuple(lines), f"{run_seed}/{stage_index}"
    )


def data_digest(path: str) -> str:
    """sha256 of the file. Raises `ConfigError`."""
    return hashlib.sha256(_read(path)).hexdigest()


def check_data(settings: Settings) -> None:
    """Reads the data of every stage. Raises as `load_data`."""
    for stage in settings.stages:
        if stage.data:
            load_data(stage)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"stage data {path!r} cannot be read: {error.strerror or error}; give the path of a JSONL file"
        ) from error


def _document(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no valid JSON ({error}); write one object a line") from error
    if not isinstance(document, dict):
        raise ValueError("no JSON object; write {…}")
    return document


def _demonstration(document: dict[str, Any]) -> Line:
    messages = _messages(document, "messages")
    if len(messages) < 2 or messages[-1].role != "assistant":
        raise ValueError("`messages` must be a conversation whose last message is the assistant's")
    return Line(messages[:-1], messages[-1:])


def _pair(document: dict[str, Any]) -> Line:
    prompt = _messages(document, "prompt" if "prompt" in document else "messages")
    if not prompt or prompt[-1].role == "assistant":
        raise ValueError("the prompt must end with a message that is not the assistant's")
    chosen, rejected = _answer(document, "chosen"), _answer(document, "rejected")
    if chosen[0].content == rejected[0].content:
        raise ValueError("`chosen` and `rejected` are the same: nothing can be learnt from it")
    return Line(prompt, chosen, rejected)


def _messages(document: dict[str, Any], key: str) -> Messages:
    found = document.get(key)
    if isinstance(found, str):
        return (ChatMessage(role="user", content=found),)
    if not isinstance(found, list):
        raise ValueError(
            f"`{key}` must be a list of messages{' or a text' if key != 'messages' else ''}; "
            f"the line has {', '.join(map(repr, document)) or 'no key'}"
        )
    try:
        return tuple(ChatMessage.model_validate(item) for item in found)
    except ValidationError as error:
        raise ValueError(
            f"`{key}` holds a message without role (system, user, assistant, tool) and content"
        ) from error


def _answer(document: dict[str, Any], key: str) -> Messages:
    found = document.get(key)
    if isinstance(found, str):
        return (ChatMessage(role="assistant", content=found),)
    messages = _messages(document, key)
    if len(messages) != 1 or messages[0].role != "assistant":
        raise ValueError(f"`{key}` must be a text or one assistant message")
    return messages
