"""A worker with topics that are closed for a while: the others go on, and nothing is started of a closed one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from shared.bus.delivery import Delivery
from shared.bus.topics import names
from shared.settings import Settings
from tests.bus.parts import Seen, producing, run, send_tasks, until, working

Make = Callable[..., Settings]


def test_a_closed_topic_waits_and_the_others_go_on(make_settings: Make) -> None:
    settings = make_settings()

    async def test() -> None:
        slow = names(settings).tasks("single_turn", "low")
        limit, most = 2, 0

        def closed(running: Mapping[str, int]) -> frozenset[str]:
            nonlocal most
            most = max(most, running.get(slow, 0))
            return frozenset({slow} if running.get(slow, 0) >= limit else ())

        gate = asyncio.Event()

        async def hold_low(index: int, delivery: Delivery[Any]) -> None:
            if delivery.topic == slow:
                await gate.wait()

        seen = Seen(hold_low)
        async with (
            producing(settings) as producer,
            working(settings, producer, seen, concurrency=8, closed=closed) as worker,
        ):
            await send_tasks(producer, settings, range(100, 120), priority="low")
            await until(lambda: worker.running().get(slow) == 2, "two of the slow topic")
            await send_tasks(producer, settings, range(50))
            await until(lambda: len(seen.finished) == 50, "all of the other topic")
            assert most == 2
            limit = 5
            worker.look_again()
            await until(lambda: worker.running().get(slow) == 5, "five of the slow topic")
            gate.set()
            await until(lambda: len(seen.finished) == 70, "everything")
            assert most == 5

    run(test())
