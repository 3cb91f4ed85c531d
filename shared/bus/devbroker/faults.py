"""Faults on purpose: rules that make the broker drop, delay, refuse or freeze the requests they match.

Invariant: without rules nothing is changed; a rule with a count acts exactly that many times.
Rules are added from any thread (a test), and acted on by the broker's event loop.
"""

import threading
import time
from collections.abc import Set
from dataclasses import dataclass, field
from enum import StrEnum

from shared.bus.devbroker.codes import Code


class FaultAction(StrEnum):
    """What happens to a request that a rule matches."""

    DROP_CONNECTION = "drop_connection"  # before any work is done
    DROP_RESPONSE = "drop_response"  # the work is done, then the connection is closed without an answer
    DELAY = "delay"  # answered `delay_ms` later
    ERROR = "error"  # answered with `code`, no work is done
    FREEZE = "freeze"  # not answered until the rule is removed


@dataclass(eq=False)
class FaultRule:
    """One rule. `api` as in Kafka ("Produce", "Fetch", …), None for all; likewise `topic` and `client_id`.

    `count` is how many requests it acts on, None for no limit. `hits` counts them.
    """

    action: FaultAction
    api: str | None = None
    topic: str | None = None
    client_id: str | None = None
    delay_ms: int = 0
    code: Code = Code.UNKNOWN_SERVER_ERROR
    count: int | None = None
    hits: int = field(default=0, init=False)

    def matches(self, api: str, topics: Set[str], client_id: str) -> bool:
        return (
            (self.api is None or self.api == api)
            and (self.topic is None or self.topic in topics)
            and (self.client_id is None or self.client_id == client_id)
            and (self.count is None or self.hits < self.count)
        )


class FaultBook:
    """The rules in force, in the order in which they were added; the first that matches acts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: tuple[FaultRule, ...] = ()

    def add(self, rule: FaultRule) -> FaultRule:
        with self._lock:
            self._rules += (rule,)
        return rule

    def remove(self, rule: FaultRule) -> None:
        with self._lock:
            self._rules = tuple(other for other in self._rules if other is not rule)

    def clear(self) -> None:
        with self._lock:
            self._rules = ()

    def is_in_force(self, rule: FaultRule) -> bool:
        return any(other is rule for other in self._rules)

    def needed(self) -> bool:
        """Whether any rule is there at all; asked for every request, so it takes no lock."""
        return bool(self._rules)

    def take(self, api: str, topics: Set[str], client_id: str) -> FaultRule | None:
        """The first rule that matches, counted as a hit."""
        with self._lock:
            for rule in self._rules:
                if rule.matches(api, topics, client_id):
                    rule.hits += 1
                    return rule
        return None

    def wait_for_hits(self, rule: FaultRule, hits: int, timeout_s: float) -> bool:
        """For tests: block until a rule has acted `hits` times; False when `timeout_s` passes first."""
        deadline = time.monotonic() + timeout_s
        while rule.hits < hits:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True
