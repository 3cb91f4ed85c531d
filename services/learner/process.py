"""The learner process: records in, policies and steps out.

Invariant: a policy is announced when its checkpoint is complete, and a step after its policy; the next step is taken
while the checkpoint is written, and its own checkpoint waits for that. Whatever stops the process, the next one goes
on from the newest checkpoint. It always says what it waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TypeVar

import structlog

from services.learner.compute import ComputeThread
from services.learner.distributed.opening import open_policy
from services.learner.distributed.place import Place
from services.learner.distributed.ranks import RankLostError
from services.learner.gradient import NonFiniteStepError, StepAbandonedError
from services.learner.intake.groups import JudgedGroup
from services.learner.intake.intake import Refused
from services.learner.intake.ledger import effective_throughput
from services.learner.intake.reader import IntakeReader, may_read_ahead
from services.learner.publisher import Publisher
from services.learner.replica import Replica
from services.learner.run_lock import RunLock
from services.learner.snapshot import Announcement
from services.learner.sources import check_sources
from services.learner.spans import StepSpans
from services.learner.stages import check_stages
from services.learner.told import read_told
from services.learner.trainer import Trainer
from shared.bus.control import ControlWatcher
from shared.bus.heartbeat import HeartbeatLoop
from shared.bus.producer import TypedProducer
from shared.bus.topics import TopicNames
from shared.contracts import Control, GroupFate, Heartbeat, Notice, Step, WorkerState
from shared.errors import TemperError
from shared.kill_points import reached
from shared.plain_errors import counted
from shared.settings import Settings
from shared.storage import ObjectStore
from shared.storage.remote import Patience
from shared.telemetry.tracing import Tracing

POLL_S = 0.2
"""Longest wait for records; control and stop are seen within it."""
BEAT_S = 3.0
"""Between two words to the other ranks while there is nothing to learn from: the timeout is at least 10 s."""
LEAVE_S = 1.0
"""For the other ranks to be sent home."""

R = TypeVar("R")


class LearnerService:
    """One learner of one run."""

    def __init__(self, settings: Settings, worker_id: str, place: Place | None = None) -> None:
        check_stages(settings)
        check_sources(settings)
        self._settings = settings
        self._worker_id = worker_id
        self._place = place or Place()
        self._run_id = settings.run.name
        self._log = structlog.get_logger()
        self._names = TopicNames(settings.bus.namespace)
        self._store = ObjectStore(settings.storage_uri, Patience(settings.storage.patience_s))
        self._producer = TypedProducer(settings, worker_id, self._store)
        self._tracing = Tracing.start(settings, "learner", worker_id)
        self._control = ControlWatcher(settings, "learner")
        self._compute = ComputeThread("learner-compute")
        self._publisher = Publisher(settings, self._producer, self._tracing, self._control)
        self._stop = asyncio.Event()
        self._trainer: Trainer | None = None
        self._replica: Replica | None = None
        self._beaten = time.monotonic()
        self._reader: IntakeReader | None = None
        self._abandoned: set[str] = set()
        self._state: WorkerState = "starting"
        self._waits_for = "the model to be loaded"
        self._gauges: dict[str, float] = {}
        self._pause_told = -1
        self._trained = 0
        self._refused_steps = 0
        self._idle_since = self._began = time.monotonic()

    @property
    def open(self) -> bool:
        """Its policy is announced and its records are read: from here on there is something to drain."""
        return self._reader is not None

    async def run(self, stop: asyncio.Event) -> None:
        """Trains until the run has ended or `stop` is set."""
        self._stop = stop
        lock = RunLock(self._store, self._run_id)
        leaving = asyncio.Event()
        beat = HeartbeatLoop(
            self._producer, self._names.workers, self._heartbeat, self._settings.telemetry.heartbeat_s
        )
        watching = asyncio.create_task(self._control.watch(leaving))
        beating = asyncio.create_task(beat.run(leaving))
        try:
            await asyncio.to_thread(lock.take, self._settings.bus.drain_s)
            await self._open()
            await self._work()
            self._say("stopped", "")
        except asyncio.CancelledError:
            self._say("stopped", "")
            raise
        except RankLostError:
            self._replica = None  # nobody is left to be sent home
            self._say("failed", "")
            raise
        except BaseException:
            self._say("failed", "")
            raise
        finally:
            await self._close(leaving, watching, beating)
            lock.release()

    async def _open(self) -> None:
        told = await read_told(self._settings, self._producer)
        if self._place.ranks > 1:
            self._say("starting", f"the model to be loaded by {self._place.ranks} processes")
        policy, ranks = await self._compute.submit(open_policy, self._settings, self._place)
        trainer = Trainer(self._settings, self._store, policy, self._stop.is_set, ranks)
        self._replica = trainer.replica
        self._say("starting", "the newest checkpoint")
        announcement = await self._compute.submit(trainer.open)
        told.check(announcement.policy.version, self._run_id)
        self._trainer = trainer
        untold = tuple(step for step in announcement.steps if step.step not in told.steps)
        first = Announcement(announcement.policy, untold, announcement.seconds)
        await self._publisher.announce(trainer, first, held_up=0.0)
        reached("before_intake", announcement.policy.version)
        self._reader = IntakeReader(self._settings, trainer, self._producer)
        self._log.info(
            "learner.ready",
            version=announcement.policy.version,
            lineage=trainer.lineage,
            attention=policy.attention,
            resumed=announcement.policy.version > 0 or told.newest_version >= 0,
        )

    async def _work(self) -> None:
        trainer = self._ready_trainer()
        while not self._stop.is_set() and not self._control.ended.is_set():
            if self._publisher.failed:
                await self._written()
            await self._beat(trainer)
            await self._give_up_groups(trainer)
            if await self._held_up(trainer):
                await self._the_reader().poll(POLL_S)
                continue
            groups = None
            if trainer.gate.open and not trainer.finished:
                fates, refused = trainer.review()
                await self._notice(fates, refused)
                groups = trainer.next_batch()
            if groups is not None:
                await self._step(trainer, groups)
                continue
            if trainer.finished:
                # Nothing follows that could book what comes late, so it is told at once.
                await self._notice(list(trainer.intake.take_fates()), [])
            self._say("waiting", self._words(trainer))
            await self._the_reader().poll(POLL_S)
        await self._written()

    async def _beat(self, trainer: Trainer) -> None:
        """The other ranks wait for a command no longer than `learner.parallel.timeout_s`."""
        if time.monotonic() - self._beaten > BEAT_S:
            self._beaten = time.monotonic()
            await self._compute.submit(trainer.replica.beat)

    async def _held_up(self, trainer: Trainer) -> bool:
        """Whether nothing may be learnt now: the guard has paused the run, or the stage waits for its weights."""
        if not trainer.gate.open:
            return False
        if trainer.pause is not None:
            await self._written()  # whoever is told of the pause finds its checkpoint
            return await self._paused(trainer)
        if not trainer.starts_from:
            return False
        index = trainer.progress.stage_index - 1
        name = f"{index}-{self._settings.stages[index].kind}-end"
        if name not in self._control.evaluations:
            # The policy of the stage before is told, then measured, before another one takes its place.
            await self._written()
            self._say("waiting", f"evaluation {name}, to start the next stage from {trainer.starts_from}")
            return True
        record = await self._compute.submit(trainer.adopt)
        self._log.info("stage.starts_from", step=record.step, source=record.notes[0])
        await self._checkpoint(trainer)
        return True

    async def _paused(self, trainer: Trainer) -> bool:
        pause = trainer.pause
        if pause is None or not self._control.caught_up.is_set():
            return True  # somebody may have said already that it goes on
        if trainer.resume(self._control.resumed):
            self._log.warning("guard.resumed", step=pause.step)
            return False
        if self._pause_told != pause.step:
            self._pause_told = pause.step
            self._log.error("guard.paused", step=pause.step, reason=pause.reason)
            control = Control(
                run_id=self._run_id, kind="pause", reason=pause.reason, body={"step": pause.step}
            )
            await self._producer.send(self._names.control, control)
        self._say("waiting", f"somebody to look and say `temper resume` ({pause.reason})")
        return True

    async def _checkpoint(self, trainer: Trainer) -> None:
        """Copies what is to be written and goes on; what is written is announced when it is complete. One at a time:
        a disk that is slower than the steps holds them up here, and an announcement is never two versions late."""
        began = time.monotonic()
        await self._written()
        snapshot = trainer.seal(self._the_reader().positions())
        staged = await self._meanwhile(self._compute.submit(trainer.take_copies, snapshot))
        self._publisher.begin(trainer, staged, time.monotonic() - began)

    async def _written(self) -> None:
        """Returns when no checkpoint is being written and all are announced. Raises what went wrong with one."""
        job = self._publisher.job
        if job is not None:
            await self._meanwhile(job)
            self._publisher.job = None

    async def _step(self, trainer: Trainer, groups: list[JudgedGroup]) -> None:
        number = trainer.progress.step + 1
        waited, began = time.monotonic() - self._idle_since, time.monotonic()
        self._say("working", "")
        spans = StepSpans(self._tracing, number)
        spans.begin(groups)
        try:
            _, metrics = await self._meanwhile(
                self._compute.submit(trainer.train, groups), self._settings.bus.drain_s
            )
        except StepAbandonedError:
            spans.abandon()
            self._log.info("step.abandoned", step=number)
            return
        except NonFiniteStepError as error:
            spans.abandon()
            self._refused_steps += 1
            self._log.error(
                "step.refused", step=number, error=str(error), trajectories=list(error.trajectories)
            )
            await self._notice(trainer.refuse(groups, error), [])
            return
        computed = time.monotonic() - began
        record, refused = trainer.book(groups, metrics, {"wait": waited, "compute": computed})
        reached("after_step", number)
        self._publisher.spans[number] = spans
        self._log_refused(refused)
        self._gauges["tokens_per_second"] = metrics.computed_tokens / computed if computed > 0 else 0.0
        if trainer.checkpoint_due():
            await self._checkpoint(trainer)
        self._after(record, time.monotonic() - began + waited)

    def _after(self, record: Step, total: float) -> None:
        self._idle_since = time.monotonic()
        self._trained += record.trained_trajectories
        self._gauges["trained_per_second"] = effective_throughput(
            self._trained, self._idle_since - self._began
        )
        for note in record.notes:
            self._log.warning("step.note", step=record.step, action=record.action, note=note)
        self._log.info(
            "step.done",
            step=record.step,
            stage=record.stage,
            loss=round(record.loss, 5),
            kl=round(record.kl, 6),
            entropy=round(record.entropy, 4),
            gradient_norm=round(record.gradient_norm, 4),
            trained=record.trained_trajectories,
            rewards={name: round(reward.mean, 4) for name, reward in record.rewards.items()},
            tokens=record.tokens,
            seconds=round(total, 2),
        )

    async def _notice(self, fates: list[GroupFate], refused: list[Refused]) -> None:
        self._log_refused(refused)
        if fates:
            await self._producer.send(self._names.steps, Notice(run_id=self._run_id, groups=tuple(fates)))

    def _log_refused(self, refused: list[Refused]) -> None:
        for group_id, index, trajectory_id, refusal in refused:
            tell = self._log.error if refusal.fate == "invalid" else self._log.warning
            tell(
                "trajectory.refused",
                group_id=group_id,
                sample=index,
                trajectory_id=trajectory_id,
                fate=refusal.fate,
                reason=refusal.reason,
            )

    async def _give_up_groups(self, trainer: Trainer) -> None:
        fresh = self._control.abandoned - self._abandoned
        if fresh and trainer.gate.open:
            self._abandoned |= fresh
            await self._notice(trainer.intake.abandon(sorted(fresh)), [])

    async def _meanwhile(self, job: asyncio.Future[R], patience_s: float | None = None) -> R:
        """Reads ahead while the job computes. After a stop it is given `patience_s` (None: as long as it takes)."""
        trainer, stopped = self._ready_trainer(), 0.0
        while not job.done():
            if self._stop.is_set():
                stopped = stopped or time.monotonic()
                if patience_s is not None and time.monotonic() - stopped > patience_s:
                    raise StepAbandonedError("the step did not end in time: the service stops")
            elif may_read_ahead(trainer.intake.buffered, self._settings.learner.max_buffered_groups):
                await self._the_reader().poll(POLL_S)
                continue
            await asyncio.wait([job], timeout=POLL_S)
        return job.result()

    def _words(self, trainer: Trainer) -> str:
        if trainer.finished:
            return "the end of the run"
        if not trainer.gate.open:
            return "records of unresolved groups to be read again"
        unjudged, unheard = trainer.intake.waiting()
        groups = counted(trainer.stage.groups_per_step, "group")
        text = f"{trainer.missing()} of {groups} for step {trainer.progress.step + 1}"
        details = [f"{counted(unjudged, 'attempt')} without a reward"] * bool(unjudged)
        details += [f"{counted(unheard, 'reward')} without an attempt"] * bool(unheard)
        return text + (f" ({', '.join(details)})" if details else "")

    def _say(self, state: WorkerState, waits_for: str) -> None:
        self._state, self._waits_for = state, waits_for

    def _heartbeat(self) -> Heartbeat:
        trainer, reader = self._trainer, self._reader
        if trainer is not None:
            self._gauges["step"] = trainer.progress.step
            self._gauges["stage"] = trainer.progress.stage_index
            self._gauges["buffered_groups"] = trainer.intake.buffered
            self._gauges["duplicates"] = trainer.intake.duplicates
        if reader is not None:
            self._gauges["invalid"] = reader.invalid
        return Heartbeat(
            run_id=self._run_id,
            worker_id=self._worker_id,
            service="learner",
            state="draining" if self._stop.is_set() and self._state == "working" else self._state,
            waits_for=self._waits_for,
            policy_version=trainer.version if trainer is not None else -1,
            in_flight=trainer.intake.buffered if trainer is not None else 0,
            processed=self._trained,
            failures=self._refused_steps,
            lag=reader.lag() if reader is not None else 0,
            gauges={**self._gauges, **self._publisher.gauges},
        )

    def _ready_trainer(self) -> Trainer:
        assert self._trainer is not None
        return self._trainer

    def _the_reader(self) -> IntakeReader:
        assert self._reader is not None
        return self._reader

    async def _close(
        self, leaving: asyncio.Event, watching: asyncio.Task[None], beating: asyncio.Task[None]
    ) -> None:
        await self._publisher.close()
        leaving.set()
        if self._replica is not None and self._place.ranks > 1:
            # A step that goes on holds the thread: then the others see that this process is gone.
            with contextlib.suppress(TimeoutError, TemperError):
                await asyncio.wait_for(self._compute.submit(self._replica.dismiss), LEAVE_S)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(watching, beating, return_exceptions=True)
        if self._reader is not None:
            await self._reader.close()
        await self._producer.close()
        self._tracing.shutdown()
