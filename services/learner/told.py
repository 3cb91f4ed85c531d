"""What the topics already say of this run.

Invariant: a version that was announced is never made again from something older, and a step is not told a second
time where it has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.bus.producer import TypedProducer
from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts import Policy, Step
from shared.errors import StorageError
from shared.settings import Settings


@dataclass(frozen=True, slots=True)
class Told:
    newest_version: int
    """−1: none."""
    steps: frozenset[int]

    def check(self, restored_version: int, run: str) -> None:
        """Raises `StorageError` when the newest announced version has no checkpoint any more."""
        if self.newest_version > restored_version:
            raise StorageError(
                f"run {run!r} announced policy {self.newest_version}, its newest checkpoint is "
                f"{restored_version}: restore the object store, or start a run with another name"
            )


async def read_told(settings: Settings, producer: TypedProducer) -> Told:
    """Reads `policies` and `steps` to their ends."""
    names = TopicNames(settings.bus.namespace)
    reader = LogReader(settings, "learner", [names.policies, names.steps], "earliest", producer)
    newest, steps = -1, set()
    try:
        async for delivery in reader.to_end():
            message = delivery.message
            if isinstance(message, Policy) and message.run_id == settings.run.name:
                newest = max(newest, message.version)
            elif isinstance(message, Step) and message.run_id == settings.run.name:
                steps.add(message.step)
        return Told(newest, frozenset(steps))
    finally:
        await reader.close()
