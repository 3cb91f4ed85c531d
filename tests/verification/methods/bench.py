"""One real sandbox for a whole test session, used from plain test functions.

The loop runs in a thread of its own, because a sandbox belongs to one loop and pytest makes none.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pytest

from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.settings import SandboxSettings
from shared.verification.judgement import Judgement
from shared.verification.methods.registry import DECLARED, packages

T = TypeVar("T")
LIMITS = Limits(wall_s=30.0, cpu_s=10.0, memory_mb=512)
"""Wide, for the machine that runs the tests may be busy."""
AT_ONCE = 2


class Bench:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.sandbox = Sandbox(SandboxSettings(python_packages=packages(DECLARED)))
        self.run(self.sandbox.start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=280)

    def judge(self, method: str, record: Mapping[str, Any], limits: Limits = LIMITS) -> Judgement:
        return self.run(self._judge(method, record, limits))

    def judge_all(self, cases: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Judgement]:
        """In order; two at a time."""

        async def work() -> list[Judgement]:
            gate = asyncio.Semaphore(AT_ONCE)

            async def one(method: str, record: Mapping[str, Any]) -> Judgement:
                async with gate:
                    return await self._judge(method, record, LIMITS)

            return list(await asyncio.gather(*(one(method, record) for method, record in cases)))

        return self.run(work())

    def close(self) -> None:
        self.run(self.sandbox.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _judge(self, method: str, record: Mapping[str, Any], limits: Limits) -> Judgement:
        declared = DECLARED[method]
        return await declared.check(self.sandbox, declared.read(record), limits)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    try:
        yield made
    finally:
        made.close()
