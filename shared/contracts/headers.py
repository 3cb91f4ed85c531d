"""Record headers: what a service knows of a message before it decodes the body.

Invariant: forwarding replaces headers and never appends, so a header is there once however many hops a
record made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace

from shared.errors import ContractError

RawHeaders = list[tuple[str, bytes]]

_ERROR_NAMES = {"error_type": "error.type", "error_message": "error.message"}
_INTEGERS = frozenset({"attempt", "policy_version", "not_before_ms", "deadline_ms"})


@dataclass(frozen=True, slots=True)
class Headers:
    """Known headers as fields, unknown ones in `other` (kept when a record is forwarded)."""

    schema: str = ""
    message_id: str = ""
    run_id: str = ""
    group_id: str = ""
    purpose: str = ""
    attempt: int = 1
    policy_version: int = -1
    not_before_ms: int = 0
    deadline_ms: int = 0
    traceparent: str = ""
    tracestate: str = ""
    claim: str = ""
    """`{"uri", "sha256", "bytes"}` as JSON where the body was claim-checked; empty otherwise."""
    error_type: str = ""
    error_message: str = ""
    origin: str = ""
    """`topic/partition/offset` of the record that a retry or dead letter was made from."""
    other: Mapping[str, bytes] = field(default_factory=dict)

    def with_(self, **changes: object) -> Headers:
        return replace(self, **changes)  # type: ignore[arg-type]

    def to_kafka(self) -> RawHeaders:
        """Only what differs from the default is written."""
        out: RawHeaders = []
        for name, wire, default in _FIELDS:
            value = getattr(self, name)
            if value != default:
                out.append((wire, str(value).encode("utf-8", "backslashreplace")))
        out.extend(self.other.items())
        return out

    @classmethod
    def from_kafka(cls, raw: Iterable[tuple[str, bytes | None]]) -> Headers:
        """Raises `ContractError` for a number that is none. The last of a repeated header wins."""
        known: dict[str, str | int] = {}
        other: dict[str, bytes] = {}
        for name, value in raw:
            body = value or b""
            field_name = _BY_WIRE_NAME.get(name)
            if field_name is None:
                other[name] = body
                continue
            text = body.decode("utf-8", "backslashreplace")
            if field_name in _INTEGERS:
                try:
                    known[field_name] = int(text)
                except ValueError as error:
                    raise ContractError(f"header {name} is {text!r}: it must be an integer") from error
            else:
                known[field_name] = text
        return cls(other=other, **known)  # type: ignore[arg-type]


_FIELDS = tuple(
    (item.name, _ERROR_NAMES.get(item.name, item.name), item.default)
    for item in fields(Headers)
    if item.name != "other"
)
_BY_WIRE_NAME = {wire: name for name, wire, _ in _FIELDS}
"""Made once: headers are read and written for every record."""
