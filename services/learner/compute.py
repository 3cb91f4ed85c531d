"""The one thread that computes, beside an event loop that must go on.

Invariant: jobs run one after another in one thread. The thread is a daemon: a process that has to leave does not
wait for a kernel that nobody can interrupt.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

R = TypeVar("R")


class ComputeThread:
    """Started by its first job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...], Future[Any]]] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[..., R], *arguments: Any) -> asyncio.Future[R]:
        """The job's result on the running loop; its error is raised where the future is awaited."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[R] = Future()
        self._jobs.put((job, arguments, future))
        return asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            job, arguments, future = self._jobs.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = job(*arguments)
            except BaseException as error:  # noqa: BLE001  (handed to whoever awaits, whatever it is)
                future.set_exception(error)
            else:
                future.set_result(result)
            del job, arguments, future
