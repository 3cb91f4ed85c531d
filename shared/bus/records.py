"""Raw record headers: reading one, replacing some, naming where a record came from.

Invariant: a record that is forwarded (retry, dead letter, replay) keeps its key, its body and every header it does
not replace, byte for byte, even when this build cannot read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shared.contracts.headers import RawHeaders
from shared.errors import ContractError

RawRecordHeaders = list[tuple[str, bytes | None]]

DELIVERY = "delivery"
"""How many times the bus has delivered this body, the present time included; absent is 1. It is apart from the
header `attempt`, which belongs to the message: a group scheduled for the third time has had no failed delivery."""
RETRY_GROUP = "retry_group"
"""The consumer group whose attempt failed: retry topics are shared by every group of a service."""


class Position(NamedTuple):
    """One record's place."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises `ContractError` when `text` does not read `topic/partition/offset`."""
        topic, _, rest = text.partition("/")
        partition, _, offset = rest.partition("/")
        if not topic or not partition.isdigit() or not offset.isdigit():
            raise ContractError(f"origin is {text!r}: it must read topic/partition/offset")
        return cls(topic, int(partition), int(offset))


def header(raw: Iterable[tuple[str, bytes | None]], name: str) -> str:
    """The text of a header, empty where it is absent; the last of a repeated one wins."""
    found = b""
    for key, value in raw:
        if key == name:
            found = value or b""
    return found.decode("utf-8", "backslashreplace")


def delivery_count(raw: Iterable[tuple[str, bytes | None]]) -> int:
    """Which delivery of the body this is, from 1. Raises `ContractError` for a count that is none."""
    text = header(raw, DELIVERY)
    if not text:
        return 1
    if not text.isdigit() or int(text) < 1:
        raise ContractError(f"header {DELIVERY} is {text!r}: it must be a positive integer")
    return int(text)


def replaced(raw: Iterable[tuple[str, bytes | None]], changes: Mapping[str, str | None]) -> RawHeaders:
    """`raw` with headers replaced (a value) or removed (None); everything else as it was, in its order."""
    kept = [(name, value or b"") for name, value in raw if name not in changes]
    added = [
        (name, value.encode("utf-8", "backslashreplace"))
        for name, value in changes.items()
        if value is not None
    ]
    return kept + added
