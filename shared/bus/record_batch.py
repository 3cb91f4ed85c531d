"""The records of a fetched batch, straight to what the bus works with.

Invariant: the same offsets, timestamps, keys, bodies and headers as kafka-python reads from the same bytes; and bytes
that are no records raise, none of them half read. Reading a batch in one pass takes a third of the library's time,
which is most of what consuming costs: that reads byte by byte through functions, and makes three objects of a record.

Source: https://kafka.apache.org/documentation/#recordbatch (format v2).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from shared.bus.delivery import RawRecord


class BatchFrame(NamedTuple):
    """What a batch's header says of all its records."""

    topic: str
    partition: int
    base_offset: int
    base_timestamp_ms: int
    append_timestamp_ms: int | None
    """The broker's, on a topic with LogAppendTime: it replaces those of the records."""
    records: int


def read_records(frame: BatchFrame, body: bytes) -> list[RawRecord]:
    """`body`: the bytes behind the batch's header, decompressed.

    Raises `ValueError` or `IndexError` when they are not `frame.records` records and nothing else.
    """
    topic, partition, base_offset, base_ms, append_ms, count = frame
    out: list[RawRecord] = []
    at = 0
    for _ in range(count):
        length, at = _varint(body, at)
        end = at + length
        # One byte of attributes, unused in v2, comes first.
        delta_ms, at = _varint(body, at + 1)
        delta, at = _varint(body, at)
        key, at = _nullable(body, at)
        value, at = _nullable(body, at)
        number, at = _varint(body, at)
        headers, at = _headers(body, at, number)
        if at != end:
            raise ValueError(f"a record of {length} bytes ends {at - end} bytes from where it says")
        timestamp_ms = base_ms + delta_ms if append_ms is None else append_ms
        out.append(RawRecord(topic, partition, base_offset + delta, timestamp_ms, key, value, headers))
    if at != len(body):
        raise ValueError(f"{count} records take {at} of {len(body)} bytes")
    return out


def _headers(body: bytes, at: int, number: int) -> tuple[list[tuple[str, bytes | None]], int]:
    if number < 0:
        raise ValueError(f"a record has {number} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(number):
        # Names and most values are shorter than 64 bytes, whose length is one even byte: twice the number.
        size = body[at]
        if size & 0x81:
            size, at = _varint(body, at)
            if size < 0:
                raise ValueError(f"the name of a header has {size} bytes")
        else:
            size >>= 1
            at += 1
        name = _name(body[at : at + size])
        at += size
        size = body[at]
        if size & 0x81:
            value, at = _nullable(body, at)
        else:
            at += 1
            value = body[at : at + (size >> 1)]
            at += size >> 1
        headers.append((name, value))
    return headers, at


@functools.lru_cache(maxsize=1024)
def _name(raw: bytes) -> str:
    """The few names that there are come with every record."""
    return raw.decode()


def _nullable(body: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(body, at)
    if size < 0:
        return None, at
    end = at + size
    return body[at:end], end


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A zigzag-coded integer and where it ends."""
    byte = body[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    second = body[at + 1]
    if second < 0x80:
        coded = byte & 0x7F | second << 7
        return (coded >> 1) ^ -(coded & 1), at + 2
    return _long_varint(body, at)


def _long_varint(body: bytes, at: int) -> tuple[int, int]:
    coded = shift = 0
    while True:
        byte = body[at]
        at += 1
        coded |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (coded >> 1) ^ -(coded & 1), at
        shift += 7
        if shift >= 64:
            raise ValueError("an integer of more than 64 bits")
