"""Tools that a domain brings itself: a simulated API, a database.

Invariant: what a tool's function returns, or says in a `ToolRefusal`, is all that the policy reads; anything else that
it raises is a fault of ours, and no word of it reaches the policy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from shared.contracts.task import DomainRef
from shared.errors import TemperError
from shared.sandbox.sessions.session import Session


@dataclass(frozen=True, slots=True)
class Submission:
    """What a tool returns to end the attempt: `answer` is its final answer."""

    answer: str


ToolFunction = Callable[..., Awaitable[str | Submission]]
"""`async def name(argument: type = default) -> str`: its name, its docstring's first paragraph and its annotations are
what the policy is told. `Annotated[str, "what it is"]` describes an argument."""


class ToolRefusal(TemperError):
    """The policy asked for something that cannot be done; the message tells it what, and what it may do instead."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What one attempt gives to the tools of its domain: the public part of its task, and its sandbox session.

    Nothing here knows the expected answer, and nothing that is made from it may.
    """

    reference: DomainRef
    files: Mapping[str, str] = field(default_factory=dict)
    session: Session | None = None


@runtime_checkable
class OffersTools(Protocol):
    """A domain with tools of its own; a `Domain` subclass may implement it."""

    def tools(self, bench: Bench) -> Sequence[ToolFunction]:
        """The functions of one attempt, with whatever state they share. Called once an attempt."""
