"""What tools read in a run's control topic, and what they say there.

Invariant: only words of this run are seen, in the order in which they were said; a word was acknowledged when `tell`
returns. Blocking.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.contracts import Control
    from shared.settings import Settings


def words(settings: Settings) -> list[Control]:
    """The oldest first. The topic is compacted: of each kind, and of each domain, the newest is there."""
    from shared.bus.reader import LogReader
    from shared.bus.topics import TopicNames
    from shared.contracts import Control

    async def read() -> list[Control]:
        reader = LogReader(settings, "scheduler", [TopicNames(settings.bus.namespace).control])
        try:
            said = [delivery.message async for delivery in reader.to_end()]
        finally:
            await reader.close()
        return [word for word in said if isinstance(word, Control) and word.run_id == settings.run.name]

    return asyncio.run(read())


def tell(settings: Settings, kind: str, reason: str, **more: Any) -> None:
    """Says a word as `temper <command>`. Raises `BusError`."""
    from shared.bus.producer import TypedProducer
    from shared.bus.topics import TopicNames
    from shared.contracts import Control

    said = {
        "run_id": settings.run.name,
        "kind": kind,
        "reason": reason,
        "created_ms": int(time.time() * 1000),
    }
    word = Control.model_validate(said | more)

    async def send() -> None:
        producer = TypedProducer(settings, f"temper-{kind}")
        try:
            await producer.send(TopicNames(settings.bus.namespace).control, word)
        finally:
            await producer.close()

    asyncio.run(send())
