"""Lines of sends that wait for metadata: order kept, one answer for all, empty right after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shared.bus.topic_lines import TopicLines
from shared.errors import BusError
from tests.bus.parts import run


def looking_up(outcome: int | Exception, calls: list[str], turns: int = 3) -> Callable[[str], Awaitable[int]]:
    async def look_up(topic: str) -> int:
        calls.append(topic)
        for _ in range(turns):
            await asyncio.sleep(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return look_up


def test_one_look_up_serves_a_line_in_order_and_a_steady_stream_leaves_it() -> None:
    """512 senders that send again as soon as they may: only their first sends are in line."""

    async def test() -> None:
        lines, calls, order, waits = TopicLines(), list[str](), list[tuple[int, int]](), list[int]()
        look_up = looking_up(4, calls)

        async def sender(number: int) -> None:
            for turn in range(5):
                if turn == 0 or lines.busy("a"):
                    waits.append(number)
                    assert await lines.wait("a", look_up) == 4
                order.append((turn, number))
                await asyncio.sleep(0)

        await asyncio.gather(*(sender(number) for number in range(512)))
        assert calls == ["a"]
        assert waits == list(range(512)), "somebody was in line twice"
        assert order == [(turn, number) for turn in range(5) for number in range(512)]
        assert not lines.busy("a")

    run(test())


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 5, 6])
def test_who_comes_while_the_answered_line_goes_on_stays_behind_it(turns: int) -> None:
    """A send may come at any turn of the loop: before the answer, right after it, or when the line is gone."""

    async def test() -> None:
        lines, order = TopicLines(), list[int]()
        look_up = looking_up(1, [])

        async def sender(number: int) -> None:
            if lines.busy("a") or number == 0:
                await lines.wait("a", look_up)
            order.append(number)

        senders = [asyncio.create_task(sender(number)) for number in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        senders += [asyncio.create_task(sender(number)) for number in range(3, 6)]
        await asyncio.gather(*senders)
        assert order == list(range(6))

    run(test())


def test_a_failure_answers_everybody_in_line_and_the_next_one_asks_again() -> None:
    async def test() -> None:
        lines, calls = TopicLines(), list[str]()
        fails = looking_up(BusError("topic a is not there"), calls)
        told = await asyncio.gather(*(lines.wait("a", fails) for _ in range(5)), return_exceptions=True)
        assert [str(error) for error in told] == ["topic a is not there"] * 5
        assert len({id(error) for error in told}) == 5, "one error object raised in several sends"
        assert calls == ["a"]
        assert await lines.wait("a", looking_up(2, calls)) == 2
        assert calls == ["a", "a"]

    run(test())


def test_a_cancelled_send_leaves_the_line_and_the_others_get_their_answer() -> None:
    async def test() -> None:
        lines, calls = TopicLines(), list[str]()
        look_up = looking_up(3, calls)
        first, second = (asyncio.create_task(lines.wait("a", look_up)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == 3
        with pytest.raises(asyncio.CancelledError):
            await first
        assert calls == ["a"]
        assert not lines.busy("a")

    run(test())


def test_a_loop_that_ends_during_a_look_up_leaves_no_line() -> None:
    lines = TopicLines()

    async def never(topic: str) -> int:
        await asyncio.sleep(3600)
        return 0

    async def test() -> None:
        lost = asyncio.create_task(lines.wait("a", never))
        await asyncio.sleep(0.01)
        assert not lost.done()

    run(test())
    assert not lines.busy("a")
    assert run(lines.wait("a", looking_up(7, []))) == 7
