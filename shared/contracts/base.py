"""What every message is: immutable, named, versioned JSON.

Invariant: a message is read by any later build (additive changes only, unknown fields ignored), and a
version from the future is refused by name, never guessed.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A piece of a message: immutable, unknown fields ignored."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", arbitrary_types_allowed=True, ser_json_inf_nan="strings"
    )


class Message(Part):
    """A record's body. Subclasses name their schema; the header carries `<SCHEMA>/<VERSION>`."""

    SCHEMA: ClassVar[str]
    VERSION: ClassVar[int] = 1

    def key(self) -> str:
        """The record key: what must stay in order together (section 2 of the design)."""
        raise NotImplementedError(f"{type(self).__name__} declares no key")
