"""The recorded attempts and verdicts, read again from their topics.

Invariant: of each wanted trajectory its first record counts, and the first verdict on it, as when the run learnt from
them; what is missing is named. Reading stops when everything is there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from services.learner.intake.join import Arrival, needs_no_reward
from services.learner.intake.offsets import Place, Shard
from services.learner.intake.topics import intake_topics
from shared.bus.delivery import Delivery
from shared.bus.reader import LogReader
from shared.contracts import Message, Reward, Trajectory
from shared.errors import StorageError
from shared.settings import Settings


@dataclass
class Attempts:
    """By trajectory id."""

    trajectories: dict[str, Arrival[Trajectory]] = field(default_factory=dict)
    rewards: dict[str, Arrival[Reward]] = field(default_factory=dict)

    def take(self, delivery: Delivery[Message], wanted: Collection[str]) -> None:
        message, place = delivery.message, Place(*delivery.position)
        if not isinstance(message, Trajectory | Reward) or message.trajectory_id not in wanted:
            return
        trace = delivery.headers.traceparent
        if isinstance(message, Trajectory):
            self.trajectories.setdefault(message.trajectory_id, Arrival(message, place, trace))
        else:
            self.rewards.setdefault(message.trajectory_id, Arrival(message, place, trace))

    def lacking(self, wanted: Collection[str]) -> list[str]:
        """Those without an attempt, or without the verdict that it needs."""
        return sorted(name for name in wanted if not self._whole(name))

    def _whole(self, name: str) -> bool:
        made = self.trajectories.get(name)
        return made is not None and (name in self.rewards or needs_no_reward(made.message))


async def read_attempts(settings: Settings, start: Mapping[Shard, int], wanted: Collection[str]) -> Attempts:
    """Reads `settings.bus` from `start` (the next offset of each partition) until all of `wanted` are there.

    Raises `StorageError` naming what the topics no longer hold, `BusError` and `OffsetLostError`.
    """
    found, missing = Attempts(), set(wanted)
    reader = LogReader(settings, "learner", intake_topics(settings), start or "earliest")
    try:
        async for delivery in reader.to_end():
            found.take(delivery, wanted)
            name = getattr(delivery.message, "trajectory_id", "")
            if name in missing and not found.lacking((name,)):
                missing.discard(name)
                if not missing:
                    break
    finally:
        await reader.close()
    if missing:
        shown = ", ".join(sorted(missing)[:3])
        raise StorageError(
            f"of the recorded attempts {len(missing)} are not in the topics any more ({shown}): deleted by retention, "
            "or this is another broker; replay fewer steps, or from a later checkpoint"
        )
    return found
