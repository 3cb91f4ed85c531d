"""An answer that is work: shell commands in a workspace, one turn each, and what is said at the end.

Invariant: the same commands are what an `sft` stage demonstrates and what the trial of a domain runs, so a
demonstration has been judged before anything imitates it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from shared.contracts.task import ChatMessage
from shared.domains.workspace import Keeping, left_behind
from shared.domains.workspace_tools import shell
from shared.sandbox.command import Command
from shared.sandbox.limits import Limits
from shared.sandbox.sessions.session import Session
from shared.verification.judgement import Attempt


@dataclass(frozen=True, slots=True)
class Played:
    """`commands`: of the tool `bash`, each in a turn of its own. `answer`: the last turn."""

    commands: tuple[str, ...]
    answer: str = "done"

    def __str__(self) -> str:
        return "\n".join([*(f"$ {command}" for command in self.commands), self.answer])


Answer = str | Played
"""What a domain says an attempt could be: a text, or work."""


class OpensSessions(Protocol):
    def __call__(self, files: Mapping[str, bytes]) -> AbstractAsyncContextManager[Session]: ...


def demonstration_of(answer: Answer) -> tuple[ChatMessage, ...]:
    """The assistant's turns, calls as JSON in `<tool_call>` tags: whoever shows them writes them in the model's form."""
    if isinstance(answer, str):
        return (ChatMessage(role="assistant", content=answer),)
    turns = [_call(command) for command in answer.commands]
    return tuple(ChatMessage(role="assistant", content=turn) for turn in [*turns, answer.answer])


async def play(answer: Answer, files: Mapping[str, str], sessions: OpensSessions) -> Attempt:
    """`answer` as an attempt: its commands run one after another over `files`. Raises `SandboxFault`."""
    if isinstance(answer, str):
        return Attempt(answer)
    async with sessions({path: text.encode() for path, text in files.items()}) as session:
        for command in answer.commands:
            (await session.exec(Command(shell(command)), Limits())).raise_for_infrastructure()
        return Attempt(answer.answer, await left_behind(session, files, Keeping()))


def _call(command: str) -> str:
    call = json.dumps({"name": "bash", "arguments": {"command": command}}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"
