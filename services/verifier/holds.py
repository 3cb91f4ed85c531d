"""From findings to `hold` events on the control topic.

Invariant: a domain that is held is not held again; after a lift it is counted anew. An event that cannot be written
is logged and asked for again by the next finding: it stops no reward.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import asdict

import structlog

from services.verifier.findings import Finding
from shared.bus.control import ControlWatcher
from shared.bus.producer import TypedProducer
from shared.contracts import Control
from shared.errors import TemperError


class Holds:
    """Of one verifier process."""

    def __init__(
        self,
        producer: TypedProducer,
        watcher: ControlWatcher,
        topic: str,
        *,
        run_id: str,
        worker_id: str,
        never: Collection[str] = (),
    ) -> None:
        """`never`: domains of which findings are only logged."""
        self._never = frozenset(never)
        self._producer = producer
        self._watcher = watcher
        self._topic = topic
        self._run_id = run_id
        self._worker_id = worker_id
        self._told: dict[str, Control | None] = {}
        """Domain → the word on it that was the newest when it was told."""
        self._lifts: dict[str, Control] = {}
        self._log = structlog.get_logger()
        self.count = 0
        """Events written."""

    def lifted(self) -> list[str]:
        """Domains lifted since the last call: what was counted against them is void."""
        fresh = []
        for name, control in self._watcher.domains.items():
            if control.kind == "lift" and self._lifts.get(name) is not control:
                self._lifts[name] = control
                self._told.pop(name, None)
                fresh.append(name)
        return fresh

    async def tell(self, finding: Finding) -> None:
        """Asks for the domain to be held back, unless it is or was asked for."""
        name = finding.domain
        newest = self._watcher.domains.get(name)
        if (newest is not None and newest.kind == "hold") or name in self._told:
            return
        self._told[name] = newest
        if name in self._never:
            self._log.error("domain.finding", domain=name, cause=finding.cause, reason=finding.reason)
            return
        control = Control(
            run_id=self._run_id,
            kind="hold",
            domain=name,
            reason=finding.reason,
            body={**asdict(finding), "by": self._worker_id},
            created_ms=int(time.time() * 1000),
        )
        try:
            await self._producer.send(self._topic, control)
        except TemperError as error:
            del self._told[name]
            self._log.warning("hold.not_told", domain=name, cause=finding.cause, error=str(error))
            return
        self.count += 1
        self._log.error("domain.hold", domain=name, cause=finding.cause, reason=finding.reason)
