"""Who sent a request, and how a handler ends a connection.

Invariant: handlers know of the connection only what is here.
"""

from dataclasses import dataclass

from shared.errors import TemperError


@dataclass(frozen=True)
class Caller:
    """The sender of one request. `local_host` is the address that it dialled."""

    version: int
    client_id: str
    peer_host: str
    local_host: str


class CloseConnection(TemperError):
    """Raised by a handler whose only possible answer is to close the connection."""
