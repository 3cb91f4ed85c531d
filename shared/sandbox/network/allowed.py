"""Where a run may connect to.

Invariant: a run reaches what its command names and the operator allows, both; an allowed name that resolves to this
machine, to a private network or to a metadata service is refused unless its very address is allowed. Pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from shared.errors import ConfigError

_HOST = re.compile(r"(?:\*\.)?[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Place:
    """`host:port`; `*.example.org` stands for every name below example.org, and not for example.org itself."""

    host: str
    port: int

    def covers(self, host: str, port: int) -> bool:
        if port != self.port:
            return False
        name = host.lower().rstrip(".")
        if self.host.startswith("*."):
            return name.endswith(self.host[1:]) and name != self.host[2:]
        return name == self.host

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_place(text: str) -> Place:
    """Raises `ConfigError` for what is not `host:port`."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]").lower()
    good = bool(_HOST.fullmatch(bare)) or _address(bare) is not None
    if not colon or not good or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"place {text!r} is not host:port; write it as pypi.org:443 or *.example.org:443")
    return Place(bare, int(port))


@dataclass(frozen=True, slots=True)
class Allowed:
    """Of one run: what it asked for, each covered by what the operator allows."""

    places: tuple[Place, ...]

    def names(self, host: str, port: int) -> bool:
        return any(place.covers(host, port) for place in self.places)

    def address(self, address: str, host: str, port: int) -> bool:
        """Whether the address that `host` resolved to may be connected to."""
        found = _address(address)
        if found is None:
            return False
        if found.is_global and not found.is_multicast:
            return True
        # Told by its number: somebody meant it.
        return _address(host) == found and self.names(host, port)


def allowed(asked: Sequence[str], by_operator: Sequence[str]) -> Allowed:
    """Raises `ConfigError` for a place that the operator does not allow."""
    places = tuple(parse_place(text) for text in asked)
    limits = [parse_place(text) for text in by_operator]
    for place in places:
        if not any(
            limit == place or limit.covers(place.host.removeprefix("*."), place.port) for limit in limits
        ):
            known = ", ".join(by_operator) or "none"
            raise ConfigError(f"a run asks for {place}: sandbox.network allows {known}")
    return Allowed(places)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
