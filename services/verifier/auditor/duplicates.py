"""The same answer again and again in one group.

Invariant: a group is remembered by digests only, the oldest group is forgotten first, and an attempt that is
delivered twice counts once. Pure.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

LEAST_CHARACTERS = 64
"""Of a normalised answer. Right answers to a sum are all alike and should be; two essays are not."""
LEAST_ALIKE = 3
SHARE_ALIKE = 0.5
_GROUPS = 4096
_ATTEMPTS = 1024
"""Remembered of one group."""


def normalised(answer: str) -> str:
    """Case, width and white space do not make an answer another one."""
    return " ".join(unicodedata.normalize("NFKC", answer).casefold().split())


@dataclass(slots=True)
class _Group:
    attempts: dict[str, bytes] = field(default_factory=dict)
    """Trajectory id → digest of its answer."""
    digests: Counter[bytes] = field(default_factory=Counter)


class Duplicates:
    """Of the newest groups."""

    def __init__(self, groups: int = _GROUPS) -> None:
        self._most = groups
        self._groups: OrderedDict[str, _Group] = OrderedDict()

    def __len__(self) -> int:
        return len(self._groups)

    def observe(self, group_id: str, trajectory_id: str, answer: str) -> bool:
        """True where this answer is long and at least half of the group's so far (three or more) are the same."""
        text = normalised(answer)
        if len(text) < LEAST_CHARACTERS:
            return False
        group = self._groups.setdefault(group_id, _Group())
        self._groups.move_to_end(group_id)
        if len(self._groups) > self._most:
            self._groups.popitem(last=False)
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()
        if trajectory_id not in group.attempts and len(group.attempts) < _ATTEMPTS:
            group.attempts[trajectory_id] = digest
            group.digests[digest] += 1
        alike = group.digests[digest]
        return alike >= LEAST_ALIKE and alike >= SHARE_ALIKE * len(group.attempts)
