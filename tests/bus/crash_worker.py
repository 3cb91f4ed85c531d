"""A worker process to be killed: every task becomes a reward. `python -m tests.bus.crash_worker SETTINGS.json NAME`."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

from shared.bus.delivery import Delivery
from shared.bus.producer import TypedProducer
from shared.bus.topics import names
from shared.settings import Settings
from tests.bus.parts import index_of, make_worker, reward


async def main(settings: Settings, name: str) -> None:
    producer = TypedProducer(settings, name)

    async def handler(delivery: Delivery[Any]) -> None:
        await asyncio.sleep(random.random() * 0.05)
        await producer.send(names(settings).rewards, reward(settings, index_of(delivery)))

    await make_worker(settings, producer, handler, name, concurrency=16).run(asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main(Settings.model_validate_json(Path(sys.argv[1]).read_text()), sys.argv[2]))
