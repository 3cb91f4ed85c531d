"""What the producer writes into the headers that a caller left empty. The hot path of every send.

Invariant: a header that the caller gave is never replaced, and none is written twice.
"""

from __future__ import annotations

from collections.abc import Callable

from shared.contracts.base import Message
from shared.contracts.codec import schema_header
from shared.contracts.headers import Headers, RawHeaders

NO_HEADERS = Headers()
"""The default of `send`; recognised by identity."""

Identity = tuple[str, str, str]
"""run_id, group_id, purpose; each empty where the message has none."""
_Reader = Callable[[Message], Identity]


class HeaderFill:
    """Knows how to read the identity of every message type it has seen, so that a send only reads attributes."""

    def __init__(self, run_id: str) -> None:
        """`run_id` is that of messages that carry none."""
        self._run_id = run_id
        self._known: dict[type[Message], tuple[bytes, _Reader]] = {}

    def __call__(self, headers: Headers, message: Message, message_id: str) -> RawHeaders:
        """The wire headers of `message`."""
        kind = type(message)
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = (schema_header(kind).encode(), _reader(kind))
        schema, identity = known
        run_id, group_id, purpose = identity(message)
        fills = [
            ("schema", schema),
            ("message_id", message_id.encode()),
            ("run_id", (run_id or self._run_id).encode()),
        ]
        if group_id:
            fills.append(("group_id", group_id.encode()))
        if purpose:
            fills.append(("purpose", purpose.encode()))
        if headers is NO_HEADERS:
            return fills
        given = headers.to_kafka()
        present = {name for name, _ in given}
        return given + [item for item in fills if item[0] not in present]


def _reader(kind: type[Message]) -> _Reader:
    """How to read run, group and purpose of this type: from its slot, or from its own fields."""
    fields = kind.model_fields
    has_purpose = "purpose" in fields
    if "slot" in fields:
        return lambda message: (
            message.slot.run_id,  # type: ignore[attr-defined]
            message.slot.group_id,  # type: ignore[attr-defined]
            message.purpose if has_purpose else "",  # type: ignore[attr-defined]
        )
    has_run, has_group = "run_id" in fields, "group_id" in fields
    return lambda message: (
        message.run_id if has_run else "",  # type: ignore[attr-defined]
        message.group_id if has_group else "",  # type: ignore[attr-defined]
        message.purpose if has_purpose else "",  # type: ignore[attr-defined]
    )
