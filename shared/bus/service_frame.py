"""The frame of a service that handles records one by one: start, know the run, work, leave in time, say so.

Invariant: nothing is handled before it is known whether the run has ended and which groups were given up. The frame
leaves when somebody asks, when the run ends, or when something that runs beside the worker breaks; then everything
is closed, whatever failed, and the cause of a failure is the one that is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import structlog

from shared.bus.control import ControlWatcher
from shared.bus.delivery import Delivery
from shared.bus.dispatcher import Closed
from shared.bus.heartbeat import HeartbeatLoop
from shared.bus.producer import TypedProducer
from shared.bus.subscriptions import Subscription, group_name
from shared.bus.topics import TopicNames
from shared.bus.worker import Worker, WorkerStats
from shared.contracts.base import Message
from shared.contracts.headers import Headers
from shared.contracts.worker import Heartbeat, Service, WorkerState
from shared.errors import ContractError
from shared.settings import Settings
from shared.storage import ObjectStore
from shared.telemetry.tracing import Tracing

M = TypeVar("M", bound=Message)
M_contra = TypeVar("M_contra", bound=Message, contravariant=True)


class Craft(Protocol[M_contra]):
    """What a service does inside the frame. Called on the asyncio loop."""

    @property
    def policy_version(self) -> int:
        """For heartbeats; -1 where it serves none."""

    async def open(self) -> None:
        """Before the first record. What it raises ends the service."""

    async def close(self) -> None:
        """After the last record, also where `open` failed."""

    def beside(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What runs as long as the service; one that ends has broken."""

    async def handle(self, delivery: Delivery[M_contra]) -> None:
        """One record of this run, of the right kind, whose group is wanted."""

    async def give_up(self, delivery: Delivery[M_contra], error: Exception) -> None:
        """After the last attempt at it, before it becomes a dead letter."""

    def waits_for(self) -> str:
        """In words, while no record can go on; empty otherwise."""

    def gauges(self) -> Mapping[str, float]:
        """Of the service's own, for heartbeats."""

    def ready(self) -> Mapping[str, Any]:
        """Details for the log line that says that it is."""


class ServiceFrame(Generic[M]):
    """One process of one service of one run.

    `kind` is what its topics carry, `group_of` names the group of a message; `opens` and `idles` say in words what
    it waits for while it opens and when it has nothing to do. `closed`, `running` and `look_again`: see `Worker`.
    """

    def __init__(
        self,
        settings: Settings,
        service: Service,
        worker_id: str,
        *,
        kind: type[M],
        group_of: Callable[[M], str],
        subscriptions: Sequence[Subscription],
        workloads: Sequence[str],
        concurrency: int,
        opens: str,
        idles: str,
        closed: Closed | None = None,
    ) -> None:
        self._settings = settings
        self._service: Service = service
        self._worker_id = worker_id
        self._kind = kind
        self._group_of = group_of
        self._idles = idles
        self._log = structlog.get_logger()
        self._state: WorkerState = "starting"
        self._opens = opens
        self._failure = ""
        self._craft: Craft[M] | None = None
        self.names = TopicNames(settings.bus.namespace)
        self.tracing = Tracing.start(settings, service, worker_id)
        self.store = ObjectStore(settings.storage_uri)
        self.producer = TypedProducer(settings, worker_id, self.store)
        self.watcher = ControlWatcher(settings, service)
        self._worker = Worker(
            settings,
            service,
            worker_id,
            subscriptions,
            self._handle,
            self.producer,
            concurrency=concurrency,
            group=group_name(settings, service, workloads),
            on_exhausted=self._give_up,
            accept=self._accept,
            closed=closed,
        )
        self.running = self._worker.running
        self.look_again = self._worker.look_again

    async def run(self, craft: Craft[M], stop: asyncio.Event) -> None:
        """Handle records until `stop` is set or the run has ended. Raises what `craft` raises outside records."""
        self._craft = craft
        heartbeat = HeartbeatLoop(
            self.producer, self.names.workers, self.heartbeat, self._settings.telemetry.heartbeat_s
        )
        leave = asyncio.Event()
        beating = asyncio.create_task(heartbeat.run(asyncio.Event()))
        beside = [asyncio.create_task(self.watcher.watch()), *map(asyncio.create_task, craft.beside())]
        leaving = asyncio.create_task(self._leave_in_time(stop, leave, beside))
        try:
            await asyncio.sleep(
                0
            )  # a task that is cancelled before its first step would send no last heartbeat
            await craft.open()
            await self._know_the_run(leave)
            await self._worker.run(leave)
            for task in beside:
                if task.done():
                    task.result()
            self._state = "stopped"
        except BaseException as error:
            self._state, self._failure = "failed", str(error)
            raise
        finally:
            tasks = [beating, leaving, *beside]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            try:
                await craft.close()
            finally:
                await self.producer.close()
                self.tracing.shutdown()

    async def _know_the_run(self, leave: asyncio.Event) -> None:
        self._opens = "the control topic"
        await self.watcher.known(leave)
        if not leave.is_set() and self._craft is not None:
            self._state = "idle"
            self._log.info(f"{self._service}.ready", **self._craft.ready())

    async def _leave_in_time(
        self, stop: asyncio.Event, leave: asyncio.Event, beside: Sequence[asyncio.Task[None]]
    ) -> None:
        """Sets `leave` when somebody asks, when the run ends, or when what runs beside the worker broke."""
        await self.watcher.over(stop, beside)
        self._state = "draining"
        broken = next((task.exception() for task in beside if task.done()), None)
        if broken is not None:
            self._state, self._failure = "failed", str(broken)
        reason = self._failure or self.watcher.reason or ("asked to" if stop.is_set() else "")
        self._log.info(f"{self._service}.leaving", reason=reason)
        leave.set()

    def _accept(self, headers: Headers) -> bool:
        return headers.run_id == self._settings.run.name

    async def _handle(self, delivery: Delivery[Any]) -> None:
        message = delivery.message
        if not isinstance(message, self._kind):
            raise ContractError(
                f"{delivery.position} holds a {message.SCHEMA}: {delivery.topic} is for {self._idles} only"
            )
        if self._craft is not None and self._group_of(message) not in self.watcher.abandoned:
            await self._craft.handle(delivery)

    async def _give_up(self, delivery: Delivery[Any], error: Exception) -> None:
        if isinstance(delivery.message, self._kind) and self._craft is not None:
            await self._craft.give_up(delivery, error)

    def heartbeat(self) -> Heartbeat:
        stats = self._worker.stats()
        state, waits_for = self._condition(stats)
        craft = self._craft
        return Heartbeat(
            run_id=self._settings.run.name,
            worker_id=self._worker_id,
            service=self._service,
            state=state,
            waits_for=waits_for,
            policy_version=-1 if craft is None else craft.policy_version,
            in_flight=stats.in_flight,
            processed=stats.processed,
            failures=stats.failures,
            lag=stats.lag,
            gauges={
                "partitions": stats.partitions,
                "retried": stats.retried,
                "dead": stats.dead,
                "skipped": stats.skipped,
                **({} if craft is None else craft.gauges()),
            },
        )

    def _condition(self, stats: WorkerStats) -> tuple[WorkerState, str]:
        """State, and in words what it waits for."""
        if self._failure:
            return "failed", self._failure
        if self._state == "starting":
            return "starting", self._opens
        if self._state in ("stopped", "failed"):
            return self._state, ""
        if stats.blocked or stats.problem:
            return "waiting", stats.problem or stats.blocked[0]
        if self._state != "idle":
            return self._state, ""
        wanted = "" if self._craft is None else self._craft.waits_for()
        if wanted:
            return "waiting", wanted
        return ("working", "") if stats.in_flight else ("idle", self._idles)
