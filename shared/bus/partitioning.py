"""Which partition a key goes to.

Invariant: the same choice as every Kafka client makes by default (murmur2 of the key, modulo partitions), so that
records written by other tools with the same key stay in the same order.
"""

from __future__ import annotations

import functools
from typing import Any

from kafka.partitioner.default import DefaultPartitioner, murmur2


class KeyPartitioner(DefaultPartitioner):  # type: ignore[misc]
    """Remembers the hashes of recent keys: the records of one group share a key, and hashing is pure Python."""

    def __init__(self, remembered: int = 8192) -> None:
        self._hash = functools.lru_cache(maxsize=remembered)(_positive_hash)

    def partition(  # noqa: PLR0917  (the library calls it so)
        self,
        topic: str,
        key: Any,
        serialized_key: bytes | None,
        value: Any,
        serialized_value: Any,
        cluster: Any,
    ) -> int:
        if serialized_key is None:
            chosen: int = super().partition(topic, key, serialized_key, value, serialized_value, cluster)
            return chosen
        return self._hash(serialized_key) % len(cluster.partitions_for_topic(topic))


def _positive_hash(key: bytes) -> int:
    hashed: int = murmur2(key)
    return hashed & 0x7FFFFFFF
