"""The gate of `rollout.follow`: what may run beside a change of policy, in each mode."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollout.engines.gate import Gate, Mode

MODES = st.sampled_from(["in_flight", "between_turns", "drain"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "turn", "end_turn", "end", "load", "loaded", "cancel", "single"]),
        st.integers(0, 3),
    ),
    max_size=50,
)


class Actor:
    """Episodes and loads that are driven step by step; every one is a task that waits for its next order."""

    def __init__(self, mode: Mode) -> None:
        self.gate = Gate(mode)
        self.tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.ends: dict[tuple[str, int], asyncio.Event] = {}
        self.inside: set[tuple[str, int]] = set()

    def start(self, kind: str, number: int, manager: Any) -> None:
        key = (kind, number)
        if key in self.tasks and not self.tasks[key].done():
            return
        self.ends[key] = asyncio.Event()

        async def live() -> None:
            async with manager:
                self.inside.add(key)
                try:
                    self.check()
                    await self.ends[key].wait()
                finally:
                    self.inside.discard(key)

        self.tasks[key] = asyncio.create_task(live())

    def check(self) -> None:
        loading = any(kind == "load" for kind, _ in self.inside)
        turns = [key for key in self.inside if key[0] in ("turn", "single")]
        episodes = [key for key in self.inside if key[0] == "episode"]
        if loading and self.gate.mode == "between_turns":
            assert not turns
        if loading and self.gate.mode == "drain":
            assert not turns and not episodes

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)
        self.check()


@given(MODES, STEPS)
def test_nothing_protected_runs_beside_a_load_and_all_end(mode: Mode, steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        actor = Actor(mode)
        gate = actor.gate
        for step, number in steps:
            if step == "begin":
                actor.start("episode", number, gate.episode(f"e{number}"))
            elif step == "turn" and ("episode", number) in actor.inside:
                actor.start("turn", number, gate.turn(f"e{number}"))
            elif step == "single":
                actor.start("single", number, gate.turn())
            elif step == "load":
                actor.start("load", 0, gate.hold())
            elif step in ("end_turn", "end", "loaded"):
                kind = {"end_turn": "turn", "end": "episode", "loaded": "load"}[step]
                for key in [(kind, number if kind != "load" else 0), ("single", number)]:
                    if key in actor.inside and not (key[0] == "episode" and _has_turn(actor, number)):
                        actor.ends[key].set()
            elif step == "cancel":
                for key, task in actor.tasks.items():
                    if key[1] == number and key[0] != "episode":
                        task.cancel()
            await actor.settle()
            if mode == "in_flight":
                assert len(actor.inside) == sum(not task.done() for task in actor.tasks.values())
        # Whatever was left waiting gets in and out once its turn comes: nobody is forgotten.
        for event in actor.ends.values():
            event.set()
        await asyncio.wait_for(asyncio.gather(*actor.tasks.values(), return_exceptions=True), 5)
        assert gate.running == (0, 0) and not gate.held and not actor.inside

    asyncio.run(run())


@given(st.integers(1, 4), st.integers(0, 9))
def test_no_more_turns_than_places(places: int, wanted: int) -> None:
    async def run() -> int:
        gate, most = Gate("between_turns", places), 0

        async def turn() -> None:
            nonlocal most
            async with gate.turn():
                most = max(most, gate.running[0])
                await asyncio.sleep(0)

        await asyncio.wait_for(asyncio.gather(*(turn() for _ in range(wanted))), 5)
        return most

    assert asyncio.run(run()) == min(places, wanted)


def _has_turn(actor: Actor, number: int) -> bool:
    task = actor.tasks.get(("turn", number))
    return task is not None and not task.done()


@pytest.mark.parametrize("mode", ["between_turns", "drain"])
def test_an_episode_that_had_begun_meets_the_load_where_its_mode_says(mode: Mode) -> None:
    """Between its turns, or after its last; what comes later waits for the new policy."""

    async def run() -> list[str]:
        gate, told = Gate(mode), []
        began, go_on = asyncio.Event(), asyncio.Event()

        async def episode() -> None:
            async with gate.episode("a"):
                for turn in (1, 2):
                    async with gate.turn("a"):
                        told.append(f"turn {turn}")
                        began.set()
                        await go_on.wait()

        async def load() -> None:
            async with gate.hold():
                told.append("load")

        running = asyncio.create_task(episode())
        await began.wait()
        loading = asyncio.create_task(load())
        await asyncio.sleep(0)

        async def late() -> None:
            async with gate.episode("b"), gate.turn("b"):
                told.append("late")

        later = asyncio.create_task(late())
        await asyncio.sleep(0)
        assert told == ["turn 1"]
        go_on.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(running, loading, later)
        return told

    told = asyncio.run(run())
    assert told.index("load") < told.index("late")
    assert (
        told.index("load") < told.index("turn 2")
        if mode == "between_turns"
        else told[:3] == ["turn 1", "turn 2", "load"]
    )
