"""The word that attempts are handed back: when it comes, to whom, and how long it leaves them."""

from __future__ import annotations

import asyncio

from services.rollout.engines.cut import GRACE_S, unless_cut
from services.rollout.handing_back import HandingBack
from shared.contracts import Task


async def resend(task: Task) -> None:
    raise AssertionError("nothing is handed back here")


def test_at_a_shutdown_attempts_are_warned_before_they_are_cut() -> None:
    async def body() -> None:
        handing, stop = HandingBack(resend), asyncio.Event()
        with handing.cut() as running:
            watch = asyncio.create_task(handing.at_the_end(stop, after_s=0.05))
            await asyncio.sleep(0.1)
            assert not running.near and not running.asked
            stop.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert running.near and not running.asked
            with handing.cut() as begun_since:
                assert begun_since.near
                await begun_since.wait()
            await running.wait()
        watch.cancel()
        assert (running.reason, running.grace_s) == ("hand_back", GRACE_S)

    asyncio.run(body())


def test_a_publish_cuts_what_runs_then_and_waits_for_what_cannot_end() -> None:
    async def body() -> None:
        handing = HandingBack(resend)
        with handing.cut() as running:
            handing.at_a_publish()
            assert (running.reason, running.grace_s) == ("hand_back", None)
            with handing.cut() as begun_since:
                assert not begun_since.asked and not begun_since.near
            assert await unless_cut(running, asyncio.sleep(0.2, "through")) == "through"
            assert await unless_cut(running, asyncio.sleep(60.0, "through"), grace_s=0.01) is None

    asyncio.run(body())


def test_the_first_word_stays_with_its_grace() -> None:
    async def body() -> None:
        handing = HandingBack(resend)
        with handing.cut() as running:
            running.ask("surplus")
            handing.at_a_publish()
            assert (running.reason, running.grace_s) == ("surplus", GRACE_S)

    asyncio.run(body())
