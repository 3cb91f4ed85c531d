"""A partition during one assignment, and the work that comes from it.

Invariant: each field has one writer (the poll thread or the asyncio loop), so no lock is needed; and work that
outlives its assignment still points at the old `Owned`, which is no longer `active`: its result counts for nothing.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any

from shared.bus.delivery import RawRecord
from shared.bus.tracker import CommitTracker


@dataclass(eq=False, slots=True)
class Owned:
    """One assigned partition."""

    place: Any
    """kafka-python's `TopicPartition`."""
    delay_s: float
    """Of a retry topic; 0 elsewhere."""
    # Written by the poll thread (and by the rebalance listener, while the poll thread waits for it).
    active: bool = True
    placed: bool = False
    """Whether the position has been set from the group's commit."""
    tracker: CommitTracker = field(default_factory=lambda: CommitTracker(0))
    held: collections.deque[RawRecord] = field(default_factory=collections.deque)
    """Records of a retry topic that are not due yet."""
    # Written by the asyncio loop.
    running: int = 0
    """Handlers at work on records of this partition, failures still being written included."""
    revoked: bool = False
    """No further record of it may be dispatched."""
    blocks: int = 0
    """Failures whose retry or dead letter could not be written yet: the partition stands still."""
    parked: list[Work] = field(default_factory=list)
    """Work that arrived while it stood still."""


@dataclass(eq=False, slots=True)
class Work:
    """One fetched record on its way to the handler."""

    record: RawRecord
    owned: Owned
    lane: str
    """Its class in the fair queue: the topic that it, or the record it is a retry of, was written to."""
    size: int
