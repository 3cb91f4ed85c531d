"""What was sampled and what was given, as the sequences of a trajectory.

Invariant (7 of the design): ids are only appended; ids, mask, log-probabilities, versions and roles grow together.
A context that is rewritten begins a new sequence; the old one stays as it was sampled from.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.rollout.engines.base import Generation, Ids
from shared.contracts import NOT_SAMPLED, Role, RoleSpan, Sequence, VersionSpan

_FIRST_SIZE = 1024


class _Growing:
    """One context. Doubles its room, so that a turn costs what it adds."""

    def __init__(self) -> None:
        self.length = 0
        self.sampled = 0
        self._ids: Ids = np.zeros(_FIRST_SIZE, dtype=np.int32)
        self._mask: NDArray[np.uint8] = np.zeros(_FIRST_SIZE, dtype=np.uint8)
        self._logprobs: NDArray[np.float32] = np.zeros(_FIRST_SIZE, dtype=np.float32)
        self._versions: list[tuple[int, int]] = []
        self._roles: list[tuple[int, Role]] = []

    def view(self) -> Ids:
        """Read-only; stays as it is when more is appended, because what is there is never written again."""
        view = self._ids[: self.length]
        view.flags.writeable = False
        return view

    def given(self, ids: Ids, roles: Items[RoleSpan]) -> None:
        self._room(len(ids))
        self._ids[self.length : self.length + len(ids)] = ids
        self._grown(len(ids), [(len(ids), NOT_SAMPLED)], [(span.length, span.role) for span in roles])

    def take(self, made: Generation) -> None:
        count = len(made.token_ids)
        self._room(count)
        place = slice(self.length, self.length + count)
        self._ids[place] = made.token_ids
        self._mask[place] = 1
        self._logprobs[place] = made.logprobs
        self.sampled += count
        self._grown(count, made.versions, [(count, "assistant")])

    def finished(self) -> Sequence:
        return Sequence(
            token_ids=self._ids[: self.length],
            loss_mask=self._mask[: self.length],
            logprobs=self._logprobs[: self.length],
            version_spans=tuple(
                VersionSpan(length=length, version=version) for length, version in self._versions
            ),
            role_spans=tuple(RoleSpan(length=length, role=role) for length, role in self._roles),
        )

    def _grown(self, count: int, versions: Items[tuple[int, int]], roles: Items[tuple[int, Role]]) -> None:
        self.length += count
        for length, version in versions:
            if self._versions and self._versions[-1][1] == version:
                self._versions[-1] = (self._versions[-1][0] + length, version)
            elif length:
                self._versions.append((length, version))
        for length, role in roles:
            if self._roles and self._roles[-1][1] == role:
                self._roles[-1] = (self._roles[-1][0] + length, role)
            elif length:
                self._roles.append((length, role))

    def _room(self, more: int) -> None:
        size = len(self._ids)
        if self.length + more <= size:
            return
        while size < self.length + more:
            size *= 2
        self._ids = _wider(self._ids, self.length, size)
        self._mask = _wider(self._mask, self.length, size)
        self._logprobs = _wider(self._logprobs, self.length, size)


class Transcript:
    """Begin with `fork`; then `sampled` and `given` in turns."""

    def __init__(self) -> None:
        self._sequences: list[_Growing] = []
        self.first_version = NOT_SAMPLED
        self.last_version = NOT_SAMPLED
        self.sampled_tokens = 0

    def __len__(self) -> int:
        """Tokens of the context that is sampled from now."""
        return self._sequences[-1].length if self._sequences else 0

    @property
    def ids(self) -> Ids:
        """int32[n], read-only."""
        return self._sequences[-1].view()

    def fork(self, ids: Ids, roles: Items[RoleSpan]) -> None:
        """A new context, of which nothing is sampled. One of which nothing ever was is replaced."""
        if self._sequences and not self._sequences[-1].sampled:
            self._sequences.pop()
        self._sequences.append(_Growing())
        self._sequences[-1].given(ids, roles)

    def given(self, ids: Ids, roles: Items[RoleSpan]) -> None:
        """What follows in the context and was not sampled."""
        self._sequences[-1].given(ids, roles)

    def sampled(self, made: Generation) -> None:
        self._sequences[-1].take(made)
        self._count(made)

    def aside(self, prompt: Ids, roles: Items[RoleSpan], made: Generation) -> None:
        """A sequence of its own beside the one that goes on: a summary that the policy wrote."""
        other = _Growing()
        other.given(prompt, roles)
        other.take(made)
        self._sequences.insert(len(self._sequences) - 1, other)
        self._count(made)

    def finished(self) -> tuple[Sequence, ...]:
        """A last context of which nothing was sampled is left out, unless it is the only one."""
        kept = [sequence for sequence in self._sequences if sequence.sampled] or self._sequences[:1]
        return tuple(sequence.finished() for sequence in kept)

    def _count(self, made: Generation) -> None:
        if self.first_version == NOT_SAMPLED:
            self.first_version = made.versions[0][1]
        self.last_version = made.versions[-1][1]
        self.sampled_tokens += len(made.token_ids)


def _wider(array: NDArray[Any], used: int, size: int) -> NDArray[Any]:
    wider = np.zeros(size, dtype=array.dtype)
    wider[:used] = array[:used]
    return wider
