"""What makes a data folder one cluster: its id, and the producer ids it has given out.

Invariant: a producer id is never given out twice, whatever kills the broker: ids are reserved in blocks on disk first.
"""

import base64
import json
import uuid
from pathlib import Path

from shared.bus.devbroker.files import replace_file
from shared.bus.devbroker.settings import DevBrokerError

_BLOCK = 1_000


class Identity:
    """The file `identity.json` of a data folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.cluster_id = ""
        self._next = 0
        self._reserved_until = 0

    def open(self) -> None:
        """Read the file or make it. Raises DevBrokerError when it can't be understood."""
        if self._path.exists():
            try:
                stored = json.loads(self._path.read_text())
                self.cluster_id = stored["cluster_id"]
                self._next = self._reserved_until = int(stored["producer_ids_reserved"])
            except (ValueError, KeyError, TypeError) as fault:
                raise DevBrokerError(
                    f"cannot read {self._path}: {fault!r}; restore the file or start with an empty --data folder"
                ) from fault
            return
        self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._store()

    def next_producer_id(self) -> int:
        if self._next == self._reserved_until:
            self._reserved_until += _BLOCK
            self._store()
        self._next += 1
        return self._next - 1

    def _store(self) -> None:
        content = {"cluster_id": self.cluster_id, "producer_ids_reserved": self._reserved_until}
        replace_file(self._path, json.dumps(content).encode())
