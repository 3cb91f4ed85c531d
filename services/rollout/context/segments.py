"""A context as counted segments, and what a policy decides about them.

Invariant: a plan names every segment that stays, in order; its tokens are an upper bound of what it leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["system", "user", "assistant", "tool", "aside"]
"""aside: what stands for segments that are gone, a summary or the word that they are in the notes."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One message. `tokens` ≥ 0 with its markup; `digest_tokens`: of its short form, None where it has none."""

    kind: Kind
    tokens: int
    digest_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    number: int


@dataclass(frozen=True, slots=True)
class Digest:
    """The short form in the place of segment `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class Summary:
    """At most `tokens` that the policy itself writes, in the place of segments `numbers`."""

    numbers: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Notes:
    """Segments `numbers` go to the notes, and a word of at most `tokens` in their place says so."""

    numbers: tuple[int, ...]
    tokens: int


Step = Keep | Digest | Summary | Notes


@dataclass(frozen=True, slots=True)
class Plan:
    """What the context becomes. Segments that no step names are dropped."""

    steps: tuple[Step, ...]
    tokens: int


class ContextPolicy(Protocol):
    """Decides what stays. Pure: the same segments and budget give the same plan."""

    def plan(self, segments: Sequence[Segment], budget: int) -> Plan | None:
        """At most `budget` tokens; system segments and the last user segment stay as they are. None: they do not fit."""


def fixed(segments: Sequence[Segment]) -> frozenset[int]:
    """Numbers of what always stays: system segments and the last user segment."""
    users = [number for number, segment in enumerate(segments) if segment.kind == "user"]
    systems = [number for number, segment in enumerate(segments) if segment.kind == "system"]
    return frozenset([*systems, *users[-1:]])


def units(segments: Sequence[Segment], without: frozenset[int]) -> list[tuple[int, ...]]:
    """The rest in pieces that only make sense whole: an answer with the results of its calls, another message alone."""
    found: list[list[int]] = []
    for number, segment in enumerate(segments):
        if number in without:
            continue
        if segment.kind == "tool" and found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return [tuple(unit) for unit in found]


def cost(segments: Sequence[Segment], numbers: Sequence[int] | frozenset[int]) -> int:
    return sum(segments[number].tokens for number in numbers)
