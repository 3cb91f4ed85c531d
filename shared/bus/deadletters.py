"""Dead letters: records that nobody could handle, kept as they were, with the reason.

Invariant: a dead letter holds the original key, body and headers byte for byte, and beside them error.type,
error.message and origin; a replay sends exactly those bytes to the origin's topic, with the delivery count reset.
"""

from __future__ import annotations

from shared.bus.delivery import RawRecord
from shared.bus.producer import TypedProducer
from shared.bus.records import DELIVERY, Position, header, replaced
from shared.bus.topics import TopicNames
from shared.contracts.headers import RawHeaders
from shared.settings import Settings

OFFSET_LOST = "OffsetLost"
_LONGEST_MESSAGE = 2000


def origin_of(record: RawRecord) -> str:
    """`topic/partition/offset` of the record that this one was first made from: itself unless it is a retry."""
    return header(record.headers, "origin") or str(record.position)


def dead_headers(record: RawRecord, error: BaseException, deliveries: int) -> RawHeaders:
    """The headers of `record` as a dead letter."""
    return replaced(
        record.headers,
        {
            "error.type": type(error).__name__,
            "error.message": str(error)[:_LONGEST_MESSAGE] or type(error).__name__,
            "origin": origin_of(record),
            "not_before_ms": None,
            DELIVERY: str(deliveries),
        },
    )


class DeadLetters:
    """Writes to the dead-letter topic of one service."""

    def __init__(self, producer: TypedProducer, settings: Settings, service: str) -> None:
        self._producer = producer
        self.topic = TopicNames(settings.bus.namespace).dead(service)

    async def send(self, record: RawRecord, error: BaseException, deliveries: int = 1) -> Position:
        """Write one and wait for its acknowledgement. Raises `BusError` when the broker does not take it."""
        return await self._producer.send_raw(
            self.topic, record.key, record.value, dead_headers(record, error, deliveries)
        )
