"""Frames of the Kafka protocol: splitting off the request header, decoding bodies, encoding answers.

Invariant: a frame either becomes one request of a version that this broker announced, or raises WireError.
Source: https://kafka.apache.org/protocol#protocol_messages
"""

import struct
from dataclasses import dataclass
from typing import Any

from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBuffer

from shared.errors import TemperError

_FIXED = struct.Struct(">hhih")


class WireError(TemperError):
    """A frame that can't be understood; its connection is closed."""


@dataclass(frozen=True)
class RequestHead:
    """The header of a request. `after_client_id` is a position in the frame."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    after_client_id: int


def read_head(frame: bytes) -> RequestHead:
    """The header up to the client id, which is encoded alike in every version. Raises WireError."""
    try:
        api_key, version, correlation_id, length = _FIXED.unpack_from(frame)
        end = _FIXED.size + max(length, 0)
        client_id = frame[_FIXED.size : end].decode()
    except (struct.error, UnicodeDecodeError) as fault:
        raise WireError(f"a request header of {len(frame)} bytes cannot be read: {fault}") from fault
    return RequestHead(api_key, version, correlation_id, client_id, end)


def _skip_tagged_fields(frame: bytes, position: int) -> int:
    count, position = _unsigned_varint(frame, position)
    for _ in range(count):
        _tag, position = _unsigned_varint(frame, position)
        size, position = _unsigned_varint(frame, position)
        position += size
    return position


def _unsigned_varint(frame: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def read_body(request_class: Any, head: RequestHead, frame: bytes) -> Any:
    """The request behind a head. Raises WireError."""
    try:
        position = head.after_client_id
        if request_class.flexible_version_q(head.version):
            position = _skip_tagged_fields(frame, position)
        return request_class.decode(memoryview(frame)[position:], version=head.version)
    except (struct.error, ValueError, IndexError, TypeError) as fault:
        raise WireError(
            f"a {request_class.name} v{head.version} from client {head.client_id!r} cannot be decoded: {fault}"
        ) from fault


def encode_answer(answer: Any, version: int, correlation_id: int, flexible_header: bool) -> bytearray:
    """The whole frame of an answer, its length in front."""
    flexible = answer.flexible_version_q(version)
    encode = answer._struct.compiled_encode_into(version, compact=flexible, tagged=flexible)
    out = (
        EncodeBuffer()
    )  # one for each answer: a pooled one would stay as large as the largest fetch ever was
    out.pos = 9 if flexible_header else 8
    encode(answer, out)
    struct.pack_into(">ii", out.buf, 0, out.pos - 4, correlation_id)
    if flexible_header:
        out.buf[8] = 0  # no tagged fields
    del out.buf[out.pos :]
    return out.buf  # type: ignore[no-any-return]
