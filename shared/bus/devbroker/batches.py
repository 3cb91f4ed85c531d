"""Record batches of format v2: reading headers, checking, stamping offsets, walking records.

Invariant: a produced batch is stored byte for byte, except for the base offset and the leader epoch (outside
its CRC) and, under LogAppendTime, the timestamp type and the largest timestamp (the CRC is then made anew).
Source: https://kafka.apache.org/documentation/#recordbatch
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from kafka.codec import gzip_decode, has_lz4, has_snappy, has_zstd, lz4_decode, snappy_decode, zstd_decode
from kafka.record.util import calc_crc32c, decode_varint

from shared.bus.devbroker.codes import Code, Refusal

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct(">qiibIhiqqqhii")
_STAMP = struct.Struct(">qii")
HEADER_BYTES = _HEADER.size  # 61
LENGTH_BYTES = 12  # base offset and length, which the length field does not count
_CRC_AT, _CRC_COVERS_FROM, _MAX_TIMESTAMP_AT = 17, 21, 35

CODEC_MASK, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, CONTROL_BIT = 0x07, 0x08, 0x10, 0x20
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
MAX_SEQUENCE = 2**31 - 1


class BatchHeader(NamedTuple):
    """The 61 bytes in front of a batch's records. Timestamps are milliseconds since 1970."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LENGTH_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK


class Record(NamedTuple):
    """One record inside a batch, with `raw` the bytes it occupies there, its length prefix included."""

    offset: int
    timestamp: int
    key: bytes | None
    has_value: bool
    raw: bytes


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; the caller has made sure that 61 bytes are there."""
    return BatchHeader._make(_HEADER.unpack_from(buffer, position))


def is_plausible(header: BatchHeader) -> bool:
    """Whether a stored header can be one at all; garbage after a torn write almost never is."""
    return header.magic == 2 and header.size >= HEADER_BYTES and header.last_offset_delta >= 0


def crc_matches(batch: Buffer, header: BatchHeader) -> bool:
    return bool(calc_crc32c(memoryview(batch)[_CRC_COVERS_FROM : header.size]) == header.crc)


def check_produced(records: Buffer, max_bytes: int) -> BatchHeader:
    """The header of the one batch that a produce request may carry for a partition.

    Raises Refusal with the code that Apache Kafka answers for the same fault.
    """
    if len(records) < HEADER_BYTES:
        raise Refusal(Code.INVALID_RECORD, f"a batch of {len(records)} bytes is shorter than its header")
    header = read_header(records)
    if header.magic != 2:
        raise Refusal(Code.INVALID_RECORD, f"record format v{header.magic} is not taken: send format v2")
    if header.size > max_bytes or len(records) > max_bytes:
        raise Refusal(Code.MESSAGE_TOO_LARGE, f"a batch of {len(records)} bytes; the topic takes {max_bytes}")
    if header.size != len(records):
        raise Refusal(
            Code.INVALID_RECORD,
            f"a batch that says {header.size} bytes came in {len(records)}: send exactly one",
        )
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise Refusal(
            Code.INVALID_RECORD,
            f"{header.record_count} records end at offset delta {header.last_offset_delta}",
        )
    if header.attributes & CONTROL_BIT:
        raise Refusal(Code.INVALID_RECORD, "clients may not write control batches")
    if header.attributes & TRANSACTIONAL_BIT:
        raise Refusal(Code.INVALID_TXN_STATE, "the dev broker has no transactions")
    if not crc_matches(records, header):
        raise Refusal(Code.CORRUPT_MESSAGE, "the batch's CRC-32C does not match its bytes")
    return header


def stamped(records: Buffer, base_offset: int, append_time: int | None) -> tuple[bytearray, BatchHeader]:
    """The batch's first 61 bytes as they are stored, and their meaning.

    `append_time` in milliseconds turns the batch into a LogAppendTime one.
    """
    head = bytearray(records[:HEADER_BYTES])
    _STAMP.pack_into(head, 0, base_offset, len(records) - LENGTH_BYTES, 0)
    if append_time is not None:
        attributes = read_header(head).attributes | LOG_APPEND_TIME_BIT
        struct.pack_into(">h", head, _CRC_COVERS_FROM, attributes)
        struct.pack_into(">q", head, _MAX_TIMESTAMP_AT, append_time)
        tail = memoryview(records)[HEADER_BYTES:]
        struct.pack_into(">I", head, _CRC_AT, calc_crc32c(bytes(head[_CRC_COVERS_FROM:]) + bytes(tail)))
    return head, read_header(head)


def can_decompress(codec: int) -> bool:
    """Whether this process has the library for a codec; gzip is always there."""
    available = {0: True, GZIP: True, SNAPPY: has_snappy(), LZ4: has_lz4(), ZSTD: has_zstd()}
    return bool(available.get(codec, False))


def iter_records(batch: Buffer) -> Iterator[Record]:
    """The records of one batch, decompressed. Call `can_decompress` first.

    Raises Refusal(CORRUPT_MESSAGE) when the payload is not what the header says.
    """
    header = read_header(batch)
    payload = _decompressed(header.codec, bytes(memoryview(batch)[HEADER_BYTES : header.size]))
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else None
    position = 0
    for _ in range(header.record_count):
        try:
            record, position = _record_at(payload, position, header, append_time)
        except (IndexError, ValueError) as fault:
            raise Refusal(Code.CORRUPT_MESSAGE, f"record at byte {position} of its batch: {fault}") from fault
        yield record


def _record_at(
    payload: bytes, start: int, header: BatchHeader, append_time: int | None
) -> tuple[Record, int]:
    length, body = decode_varint(payload, start)
    end = body + length
    if length < 0 or end > len(payload):
        raise ValueError(f"length {length} leaves the batch")
    timestamp_delta, position = decode_varint(payload, body + 1)  # one byte of unused attributes
    offset_delta, position = decode_varint(payload, position)
    key_length, position = decode_varint(payload, position)
    key = None
    if key_length >= 0:
        key = payload[position : position + key_length]
        position += key_length
    value_length, position = decode_varint(payload, position)
    timestamp = header.base_timestamp + timestamp_delta if append_time is None else append_time
    raw = payload[start:end]
    return Record(header.base_offset + offset_delta, timestamp, key, value_length >= 0, raw), end


def _decompressed(codec: int, payload: bytes) -> bytes:
    if codec == 0:
        return payload
    decode = {GZIP: gzip_decode, SNAPPY: snappy_decode, LZ4: lz4_decode, ZSTD: zstd_decode}[codec]
    try:
        return bytes(decode(payload))
    except Exception as fault:
        raise Refusal(Code.CORRUPT_MESSAGE, f"the batch cannot be decompressed: {fault}") from fault


def rebuilt(batch: Buffer, kept: list[Record]) -> bytes:
    """The batch with only the `kept` records, uncompressed, its offsets, sequence and length of offsets as before.

    An empty `kept` gives a batch of no records, which still tells a producer's last sequence number.
    """
    header = read_header(batch)
    payload = b"".join(record.raw for record in kept)
    attributes = header.attributes & ~CODEC_MASK
    fixed = header._replace(
        max_timestamp=max((record.timestamp for record in kept), default=-1),
        batch_length=HEADER_BYTES - LENGTH_BYTES + len(payload),
        attributes=attributes,
        record_count=len(kept),
        crc=0,
    )
    whole = bytearray(_HEADER.pack(*fixed) + payload)
    struct.pack_into(">I", whole, _CRC_AT, calc_crc32c(bytes(whole[_CRC_COVERS_FROM:])))
    return bytes(whole)
