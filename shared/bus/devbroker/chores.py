"""What the broker does now and then: retention, compaction, forgetting idle producers.

Invariant: a chore that fails on one log says so and leaves the others their turn.
"""

import asyncio

import structlog

from shared.bus.devbroker import compaction
from shared.bus.devbroker.broker import Broker
from shared.bus.devbroker.log import PartitionLog
from shared.errors import TemperError


class Chores:
    """Runs every `check_interval_ms` on the broker's event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def run_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._broker.settings.check_interval_ms / 1000)
            for log in self._broker.topics.all_logs():
                try:
                    await self._care_for(log)
                except (OSError, TemperError) as fault:
                    if log.deleted:
                        continue  # in the middle of the chore
                    structlog.get_logger().error(
                        "devbroker.chore_failed", log=str(log.folder), reason=str(fault)
                    )

    async def _care_for(self, log: PartitionLog) -> None:
        now = self._broker.clock()
        log.producers.expire(now - self._broker.settings.producer_id_expiration_ms)
        log.apply_retention(now)
        if log.policy.compact:
            await self._compact(log, now)

    async def _compact(self, log: PartitionLog, now: int) -> None:
        """Clean in a thread, then put the result in place here, where nobody reads meanwhile."""
        history = compaction.History.load(log.folder)
        plan = compaction.plan(log, history, now)
        if plan is None:
            return
        results = await asyncio.to_thread(compaction.run, plan, log.policy.segment_bytes)
        if log.deleted:
            return
        compaction.swap(log, results)
        history.with_pass(plan, now, log.policy.delete_retention_ms).store(log.folder)
