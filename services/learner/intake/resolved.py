"""Which groups are resolved, in a few bytes.

Invariant: membership is exact. Group ids count up per stage and kind (`0-sft-0000012`), so each stream is a
contiguous prefix and the few indices beyond it; ids of any other form are kept as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_NUMBERED = re.compile(r"^(?P<stream>[0-9]+-[A-Za-z0-9_]+)-(?P<index>[0-9]{7,})$")


def numbered(group_id: str) -> tuple[str, int] | None:
    """(`0-sft`, 12) of `0-sft-0000012`; None for an id that is not written in that canonical form."""
    match = _NUMBERED.match(group_id)
    if match is None:
        return None
    index = int(match["index"])
    return (match["stream"], index) if match["index"] == f"{index:07d}" else None


class ResolvedGroups:
    """A growing set of group ids."""

    def __init__(self, groups: Iterable[str] = ()) -> None:
        self._prefix: dict[str, int] = {}
        self._beyond: dict[str, set[int]] = {}
        self._others: set[str] = set()
        for group in groups:
            self.add(group)

    def __contains__(self, group_id: str) -> bool:
        place = numbered(group_id)
        if place is None:
            return group_id in self._others
        stream, index = place
        return index < self._prefix.get(stream, 0) or index in self._beyond.get(stream, ())

    def __len__(self) -> int:
        return len(self._others) + sum(self._prefix.values()) + sum(map(len, self._beyond.values()))

    def add(self, group_id: str) -> None:
        place = numbered(group_id)
        if place is None:
            self._others.add(group_id)
            return
        stream, index = place
        if group_id in self:
            return
        beyond = self._beyond.setdefault(stream, set())
        beyond.add(index)
        prefix = self._prefix.get(stream, 0)
        while prefix in beyond:
            beyond.discard(prefix)
            prefix += 1
        self._prefix[stream] = prefix

    def to_state(self) -> dict[str, Any]:
        """JSON: per stream `[prefix, beyond…]`, and the other ids."""
        streams = sorted(set(self._prefix) | set(self._beyond))
        return {
            "streams": {s: [self._prefix.get(s, 0), *sorted(self._beyond.get(s, ()))] for s in streams},
            "others": sorted(self._others),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> ResolvedGroups:
        found = cls(state["others"])
        for stream, (prefix, *beyond) in state["streams"].items():
            found._prefix[stream] = prefix
            found._beyond[stream] = set(beyond)
        return found
