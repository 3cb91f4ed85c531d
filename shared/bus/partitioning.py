"""Which partition a key goes to.

Invariant: the same choice as every Kafka client makes by default (murmur2 of the key, modulo partitions), so that
records written by other tools with the same key stay in the same order. A record without key may go anywhere.
"""

from __future__ import annotations

import functools
import random


class KeyPartitioner:
    """Remembers the hashes of recent keys: the records of one group share a key, and hashing is pure Python."""

    def __init__(self, remembered: int = 8192) -> None:
        self._hash = functools.lru_cache(maxsize=remembered)(_positive_hash)

    def choose(self, key: bytes | None, partitions: int) -> int:
        return random.randrange(partitions) if key is None else self._hash(key) % partitions


def _positive_hash(key: bytes) -> int:
    from kafka.partitioner.default import murmur2

    hashed: int = murmur2(key)
    return hashed & 0x7FFFFFFF
