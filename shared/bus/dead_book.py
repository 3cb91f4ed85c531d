"""Reading dead letters, and sending them again.

Invariant: a replay sends the letter's own bytes to the topic it came from, as a first delivery, and then notes in the
dead-letter topic that it did; a letter is shown as replayed only after its record was acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shared.bus.delivery import RawRecord
from shared.bus.log_cursor import LogCursor
from shared.bus.losses import OFFSET_LOST
from shared.bus.producer import TypedProducer
from shared.bus.records import DELIVERY, RETRY_GROUP, Position, header, replaced
from shared.bus.topics import SERVICES, TopicNames
from shared.errors import BusError, ConfigError, ContractError
from shared.settings import Settings

REPLAYED = "Replayed"
"""error.type of the note that a letter was sent again; its origin names the letter."""
_FETCH_S = 0.5


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One letter; `record` holds the original bytes."""

    service: str
    record: RawRecord
    replayed: bool

    @property
    def position(self) -> Position:
        """Of the letter itself."""
        return self.record.position

    @property
    def origin(self) -> str:
        """`topic/partition/offset` of the record that failed."""
        return header(self.record.headers, "origin")

    @property
    def error_type(self) -> str:
        return header(self.record.headers, "error.type")

    @property
    def error_message(self) -> str:
        return header(self.record.headers, "error.message")

    @property
    def deliveries(self) -> str:
        return header(self.record.headers, DELIVERY) or "1"

    def plain(self) -> dict[str, Any]:
        """For JSON: text with escapes for bytes that are none."""
        return {
            "service": self.service,
            "letter": str(self.position),
            "origin": self.origin,
            "error_type": self.error_type,
            "error_message": self.error_message,
            "deliveries": self.deliveries,
            "died_ms": self.record.timestamp_ms,
            "key": _text(self.record.key),
            "bytes": len(self.record.value or b""),
            "replayed": self.replayed,
            "headers": {name: _text(value) for name, value in self.record.headers},
        }


def find_letters(settings: Settings, service: str = "", wanted: str = "") -> list[DeadLetter]:
    """Letters of one service (or of all), oldest first; `wanted` selects by origin or by the letter's own position.

    Raises `ConfigError` for a service that there is none of, `BusError` when the broker cannot be read.
    """
    if service and service not in SERVICES:
        raise ConfigError(f"there is no service {service!r}: give one of {', '.join(SERVICES)}")
    names = TopicNames(settings.bus.namespace)
    services = {names.dead(name): name for name in SERVICES if not service or name == service}
    letters: list[RawRecord] = []
    replayed: set[str] = set()
    for record in read_log(settings, tuple(services)):
        if header(record.headers, "error.type") == REPLAYED:
            replayed.add(header(record.headers, "origin"))
        else:
            letters.append(record)
    found = [
        DeadLetter(services[record.topic], record, str(record.position) in replayed) for record in letters
    ]
    found.sort(key=lambda letter: letter.record.timestamp_ms)
    return [letter for letter in found if not wanted or wanted in (letter.origin, str(letter.position))]


async def replay(producer: TypedProducer, letters: Sequence[DeadLetter]) -> list[tuple[DeadLetter, str]]:
    """Send letters to the topics they came from; returns each with what became of it, in words.

    A letter that was replayed before, or that is no record (a loss report), is left alone and says so.
    """
    return [(letter, await _replay_one(producer, letter)) for letter in letters]


def read_log(settings: Settings, topics: tuple[str, ...]) -> Iterator[RawRecord]:
    """Every record that is in these topics now. Blocking. Raises `BusError`."""
    cursor = LogCursor(settings.bus, "temper-log", topics, "earliest")
    try:
        cursor.open()
        ends = dict(cursor.ends)
        while any(cursor.positions()[place] < end for place, end in ends.items()):
            yield from cursor.fetch(_FETCH_S)
    finally:
        cursor.close()


async def _replay_one(producer: TypedProducer, letter: DeadLetter) -> str:
    if letter.replayed:
        return "left alone: it was replayed before"
    if letter.error_type == OFFSET_LOST:
        return "left alone: it reports a loss, there is nothing to send"
    try:
        topic = Position.parse(letter.origin).topic
    except ContractError as error:
        return f"left alone: {error}"
    record = letter.record
    dropped = ("error.type", "error.message", "origin", "not_before_ms", DELIVERY, RETRY_GROUP)
    headers = replaced(record.headers, {**dict.fromkeys(dropped), "replay_of": str(letter.position)})
    try:
        sent = await producer.send_raw(topic, record.key, record.value, headers)
    except BusError as error:
        return f"not sent: {error}"
    note = [
        ("run_id", header(record.headers, "run_id").encode()),
        ("error.type", REPLAYED.encode()),
        ("origin", str(letter.position).encode()),
    ]
    await producer.send_raw(record.topic, record.key or b"", b"", note)
    return f"sent to {sent}"


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "backslashreplace")
