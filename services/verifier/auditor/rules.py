"""When flags hold a domain back: the rules that a run declares.

Invariant: a rule acts when, of the domain's newest attempts (no fewer than `least`, no more than the window), at
least `share` carry its flag. `*` is any one flag that a detector found in an attempt; what only shows across
attempts acts where a rule names it. Pure and of bounded memory.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.settings import AuditRule

ANY = "*"
_WINDOW = 256
_KEPT = 5


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that acted: `flagged` of the last `attempts` carried the flag, these among them."""

    domain: str
    flag: str
    flagged: int
    attempts: int
    trajectory_ids: tuple[str, ...]


@dataclass(slots=True)
class _History:
    attempts: deque[tuple[str, tuple[str, ...], tuple[str, ...]]] = field(
        default_factory=lambda: deque(maxlen=_WINDOW)
    )
    """(trajectory id, flags, stream flags) of the newest attempts."""


class FlagRules:
    """Tell it of the flags of every judged attempt, those without any too."""

    def __init__(self, rules: Sequence[AuditRule]) -> None:
        self._rules = tuple(rules)
        self._domains: dict[str, _History] = {}

    def observe(
        self, domain: str, trajectory_id: str, flags: Sequence[str], stream_flags: Sequence[str]
    ) -> Broken | None:
        """The first rule that acts, if one does."""
        history = self._domains.setdefault(domain, _History())
        history.attempts.append((trajectory_id, tuple(flags), tuple(stream_flags)))
        if not flags and not stream_flags:
            return None
        own = Counter(flag for _, found, _ in history.attempts for flag in set(found))
        every = own + Counter(flag for _, _, found in history.attempts for flag in set(found))
        for rule in self._rules:
            counts = own if rule.flag == ANY else Counter({rule.flag: every[rule.flag]})
            flag, flagged = counts.most_common(1)[0] if counts else ("", 0)
            count = len(history.attempts)
            if flagged and count >= rule.least and flagged >= rule.share * count:
                return Broken(domain, flag, flagged, count, _examples(history, flag))
        return None

    def lift(self, domain: str) -> None:
        self._domains.pop(domain, None)


def _examples(history: _History, flag: str) -> tuple[str, ...]:
    found = [name for name, flags, stream in history.attempts if flag in flags or flag in stream]
    return tuple(found[-_KEPT:])
