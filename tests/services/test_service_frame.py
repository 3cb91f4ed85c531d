"""The frame around a service: what is handled, when it leaves, and that everything is closed whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from shared.bus.delivery import Delivery
from shared.bus.service_frame import ServiceFrame
from shared.bus.subscriptions import trajectory_subscriptions
from shared.contracts import Control, Heartbeat, Trajectory
from shared.domains.registry import load_domain
from shared.errors import ConfigError, StorageError
from shared.settings import Settings
from tests.services.bench import Bench, bench
from tests.services.trajectories import trajectory

MakeSettings = Callable[..., Settings]
SUM = load_domain("arithmetic").instance(7)


class Collecting:
    """Keeps what it is given; `breaks` names the part of it that fails."""

    policy_version = 7

    def __init__(self, breaks: str = "") -> None:
        self.breaks = breaks
        self.seen: list[str] = []
        self.given_up: list[str] = []
        self.closed = 0

    async def open(self) -> None:
        if self.breaks == "open":
            raise ConfigError("nothing to open")

    async def close(self) -> None:
        self.closed += 1

    def beside(self) -> Sequence[Coroutine[Any, Any, None]]:
        return (self._beside(),)

    async def _beside(self) -> None:
        if self.breaks == "beside":
            raise StorageError("what runs beside it broke")
        await asyncio.Event().wait()

    async def handle(self, delivery: Delivery[Trajectory]) -> None:
        if delivery.message.final_answer == "fails":
            raise ValueError("cannot be handled")
        self.seen.append(delivery.message.trajectory_id)

    async def give_up(self, delivery: Delivery[Trajectory], error: Exception) -> None:
        self.given_up.append(f"{delivery.message.trajectory_id}: {error}")

    def waits_for(self) -> str:
        return "something of its own" if self.breaks == "waits" else ""

    def gauges(self) -> Mapping[str, float]:
        return {"seen": len(self.seen)}

    def ready(self) -> Mapping[str, Any]:
        return {"collects": True}


def frame_of(settings: Settings) -> ServiceFrame[Trajectory]:
    return ServiceFrame(
        settings, "verifier", "collector", kind=Trajectory, group_of=lambda t: t.slot.group_id,
        subscriptions=trajectory_subscriptions(settings), workloads=(), concurrency=4,
        opens="its baskets", idles="trajectories",
    )  # fmt: skip


async def beats(it: Bench, enough: Callable[[Heartbeat], bool]) -> list[Heartbeat]:
    found = await it.read(it.names.workers, lambda seen: any(enough(d.message) for d in seen))
    return [d.message for d in found]


def test_wanted_records_of_its_kind_are_handled_and_the_end_of_the_run_ends_it(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings()
    run = settings.run.name
    wanted, fails = trajectory(run, SUM, "1", group="g"), trajectory(run, SUM, "fails", group="f")
    unwanted, foreign = trajectory(run, SUM, "1", group="abandoned"), trajectory("another", SUM, "1")
    craft = Collecting()

    async def body() -> None:
        async with bench(settings) as it:
            abandon = Control(run_id=run, kind="abandon", groups=("abandoned",))
            await it.producer.send(it.names.control, abandon)
            hold = Control(run_id=run, kind="hold", domain="arithmetic")
            await it.producer.send(it.names.control, hold)
            frame = frame_of(settings)
            running = asyncio.create_task(frame.run(craft, asyncio.Event()))
            for message in (unwanted, foreign, Control(run_id=run, kind="end"), fails, wanted):
                await it.attempt(message)
            dead = await it.read(it.names.dead("verifier"), lambda seen: len(seen) >= 2)
            said = {
                name: value.decode()
                for d in dead
                for name, value in d.record.headers
                if name == "error.message"
            }
            assert len(dead) == 2 and said
            assert frame.watcher.domains["arithmetic"].kind == "hold"
            await it.producer.send(it.names.control, Control(run_id=run, kind="end", reason="done"))
            await asyncio.wait_for(running, 15.0)
            assert craft.seen == [wanted.trajectory_id]
            assert craft.given_up == [f"{fails.trajectory_id}: cannot be handled"]
            assert craft.closed == 1
            last = (await beats(it, lambda beat: beat.state == "stopped"))[-1]
            assert (last.state, last.policy_version, last.gauges["seen"]) == ("stopped", 7, 1)

    asyncio.run(body())


@pytest.mark.parametrize(("breaks", "kind"), [("open", ConfigError), ("beside", StorageError)])
def test_what_breaks_ends_it_with_the_cause_and_everything_closed(
    make_settings: MakeSettings, breaks: str, kind: type[Exception]
) -> None:
    settings = make_settings()
    craft = Collecting(breaks)

    async def body() -> None:
        async with bench(settings) as it:
            frame = frame_of(settings)
            with pytest.raises(kind) as caught:
                await asyncio.wait_for(frame.run(craft, asyncio.Event()), 20.0)
            assert craft.closed == 1
            last = (await beats(it, lambda beat: beat.state == "failed"))[-1]
            assert (last.state, last.waits_for) == ("failed", str(caught.value))

    asyncio.run(body())


def test_it_says_what_it_waits_for_and_leaves_when_asked(make_settings: MakeSettings) -> None:
    settings = make_settings()

    async def body() -> None:
        async with bench(settings) as it:
            frame, stop = frame_of(settings), asyncio.Event()
            assert (frame.heartbeat().state, frame.heartbeat().waits_for) == ("starting", "its baskets")
            running = asyncio.create_task(frame.run(Collecting("waits"), stop))
            await beats(it, lambda beat: (beat.state, beat.waits_for) == ("waiting", "something of its own"))
            stop.set()
            await asyncio.wait_for(running, 15.0)

    asyncio.run(body())
