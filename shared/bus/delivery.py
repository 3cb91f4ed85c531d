"""A record as a service gets it: decoded body, headers, and where it came from.

Invariant: a `Delivery` always holds a valid message; what cannot be read is an `Undecodable` with the reason, and
both still hold the raw record, so that either can be forwarded byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from shared.bus.records import DELIVERY, Position, RawRecordHeaders, delivery_count
from shared.contracts.base import Message
from shared.contracts.codec import decode
from shared.contracts.headers import Headers
from shared.errors import ContractError

M_co = TypeVar("M_co", bound=Message, covariant=True)


class RawRecord(NamedTuple):
    """A record before anyone has looked into it. Consumers return it (`client_quirks.read_raw_records`)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Milliseconds since the epoch: set by the producer, or by the broker on topics with LogAppendTime."""
    key: bytes | None
    value: bytes | None
    headers: RawRecordHeaders

    @property
    def position(self) -> Position:
        return Position(self.topic, self.partition, self.offset)

    @property
    def size(self) -> int:
        """Bytes of key and value on the wire."""
        return len(self.key or b"") + len(self.value or b"")


class Delivery(Generic[M_co]):
    """One decoded record."""

    __slots__ = ("_headers", "attempt", "message", "record")

    def __init__(self, message: M_co, record: RawRecord, attempt: int) -> None:
        self.message = message
        self.record = record
        self.attempt = attempt
        """Which delivery of this body it is, from 1 (retries count, a group's rescheduling does not)."""
        self._headers: Headers | None = None

    @property
    def headers(self) -> Headers:
        # Read on demand: many handlers never look, and building them costs as much as decoding a small body.
        if self._headers is None:
            self._headers = Headers.from_kafka(self.record.headers)
        return self._headers

    @property
    def topic(self) -> str:
        return self.record.topic

    @property
    def partition(self) -> int:
        return self.record.partition

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def key(self) -> str:
        return (self.record.key or b"").decode("utf-8", "backslashreplace")

    @property
    def timestamp_ms(self) -> int:
        return self.record.timestamp_ms

    @property
    def size(self) -> int:
        """Bytes of key and value on the wire (a claim-checked body counts its ticket only)."""
        return self.record.size

    @property
    def position(self) -> Position:
        return self.record.position

    def __repr__(self) -> str:
        return f"Delivery({type(self.message).__name__} at {self.position}, attempt {self.attempt})"


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A record that no retry will make readable, and why."""

    record: RawRecord
    error: ContractError


_NUMBERS = frozenset({"attempt", "policy_version", "not_before_ms", "deadline_ms"})


class Envelope(NamedTuple):
    """What the bus itself needs of a record's headers, read in one pass."""

    schema: str
    claim: str
    """The claim-check ticket; empty where the body travels in the record."""
    attempt: int
    numbers: bool
    """Whether there are headers that must hold integers."""


def open_envelope(record: RawRecord) -> Envelope:
    """Raises `ContractError` for a record without schema or with a delivery count that is none."""
    schema = claim = ""
    attempt, numbers = 1, False
    for name, value in record.headers:
        if name == "schema":
            schema = (value or b"").decode("utf-8", "backslashreplace")
        elif name == "claim":
            claim = (value or b"").decode("utf-8", "backslashreplace")
        elif name == DELIVERY:
            attempt = delivery_count([(name, value)])
        elif name in _NUMBERS:
            numbers = True
    if not schema:
        raise ContractError(f"record {record.position} has no schema header: a foreign producer wrote it")
    return Envelope(schema, claim, attempt, numbers)


def decode_record(record: RawRecord, envelope: Envelope, body: bytes | None = None) -> Delivery[Message]:
    """`body` replaces the record's own value (a redeemed claim).

    Raises `ContractError` for anything that cannot be read: unknown schema or version, bad body, headers with numbers
    that are none.
    """
    raw = record.value if body is None else body
    if raw is None:
        raise ContractError(f"record {record.position} has no body")
    delivery = Delivery(decode(envelope.schema, raw), record, envelope.attempt)
    if envelope.numbers:
        delivery.headers  # noqa: B018  (a bad number must be found here, not inside a handler)
    return delivery
