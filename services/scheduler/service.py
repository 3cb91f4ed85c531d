"""The scheduler process: what was scheduled and what came back in, tasks out.

Invariant: its whole state is a function of the configuration and the topics. It starts by reading them from
their beginning, so a kill at any point loses nothing and schedules nothing twice that it had already sent.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import structlog

from services.scheduler.agenda import Agenda
from services.scheduler.evaluations import RunningEvaluation
from services.scheduler.held_out import HeldOut, draw_held_out
from services.scheduler.peers import peers_in_words
from services.scheduler.tasks import TaskBuilder
from services.scheduler.training import TrainingPlan
from shared.bus.delivery import Delivery
from shared.bus.heartbeat import HeartbeatLoop
from shared.bus.producer import TypedProducer
from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts import (
    Control,
    Evaluation,
    GroupFate,
    Headers,
    Heartbeat,
    Message,
    Notice,
    Policy,
    Reward,
    Step,
    Task,
    WorkerState,
)
from shared.domains.registry import load_domain
from shared.errors import StalledError
from shared.plain_errors import counted
from shared.settings import DomainSettings, Settings
from shared.stopping import unless
from shared.storage import ObjectStore
from shared.telemetry.tracing import Tracing

POLL_S = 0.2
"""Longest wait for news; the schedule reacts to a step within it."""


@dataclass
class SchedulerState:
    """Everything the scheduler knows; made anew from the topics at every start."""

    settings: Settings
    declared: dict[str, str] = field(default_factory=dict)
    """Name of a domain in messages → its name in the settings, where they differ."""
    plan: TrainingPlan = field(init=False)
    agenda: Agenda = field(init=False)
    running: RunningEvaluation | None = None
    held_out: dict[str, HeldOut] = field(default_factory=dict)
    """By domain, as the settings name it: drawn once, before its first evaluation."""
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    policy_version: int = -1
    ended: bool = False
    holds: dict[str, str] = field(default_factory=dict)
    """Domain (as the settings name it) → why it is held back."""
    paused: str = ""
    """Why the learner's guard takes no batches; empty while it does."""
    first_trace: dict[str, str] = field(default_factory=dict)
    """Group → traceparent of its first attempt: later attempts link to it (invariant 10)."""
    evaluation_past: dict[str, list[Task | Reward]] = field(default_factory=dict)
    """What the topics hold of evaluations that are not complete: read before their turn comes after a restart."""

    def __post_init__(self) -> None:
        s = self.settings
        self.plan = TrainingPlan(
            s.stages,
            s.domains,
            run_seed=s.run.seed,
            max_lag=s.scheduler.max_lag,
            deadline_s=s.scheduler.group_deadline_s,
            max_attempts=s.scheduler.max_group_attempts,
        )
        self.agenda = Agenda(s.stages, s.evaluation, set())

    def observe(self, message: Message, headers: Headers) -> bool:
        """Takes in one message of this run; true when it means progress."""
        match message:
            case Step():
                effect = self.plan.observe_step(message)
                if effect != "repeated":
                    self.agenda.observe_step(message, effect == "stage_ended")
                self._forget_traces(message.groups)
            case Notice():
                self.plan.observe_resolved(message.groups)
                self._forget_traces(message.groups)
            case Policy():
                self.policy_version = max(self.policy_version, message.version)
            case Reward():
                self._observe_reward(message)
            case Evaluation():
                self.evaluations[message.name] = message
                self.agenda.finish(message.name)
                prefix = f"eval-{message.name}-"
                self.evaluation_past = {
                    g: m for g, m in self.evaluation_past.items() if not g.startswith(prefix)
                }
            case Control():
                self.ended = self.ended or message.kind == "end"
                if message.kind in ("pause", "resume"):
                    self.paused = message.reason if message.kind == "pause" else ""
                if message.domain:
                    self._observe_hold(message)
            case Task():
                self._observe_task(message, headers)
            case _:
                return False
        return True

    def _observe_reward(self, reward: Reward) -> None:
        group = reward.slot.group_id
        if reward.purpose != "eval":
            self.plan.observe_reward(group, reward.slot.sample_index)
        elif self.running is None or not self.running.observe_reward(reward):
            self.evaluation_past.setdefault(group, []).append(reward)

    def _observe_hold(self, control: Control) -> None:
        """The newest word on a domain counts. What the run says is never held back is not."""
        name = self.declared.get(control.domain, control.domain)
        if control.kind == "lift" or name in self.settings.auditor.never_hold:
            self.holds.pop(name, None)
        else:
            self.holds[name] = control.reason
        self.plan.held = set(self.holds)

    def _observe_task(self, task: Task, headers: Headers) -> None:
        self.first_trace.setdefault(task.group_id, headers.traceparent)
        if task.purpose == "eval":
            self.evaluation_past.setdefault(task.group_id, []).append(task)
        else:
            name = self.declared.get(task.domain.name, task.domain.name)
            self.plan.observe_scheduled(
                task.group_id, task.attempt, task.created_ms / 1000, name, task.domain.seed
            )

    def _forget_traces(self, groups: tuple[GroupFate, ...]) -> None:
        for group in groups:
            self.first_trace.pop(group.group_id, None)

    def to_evaluate(self) -> list[DomainSettings]:
        """The domains of the next evaluation, without those that are held back; empty where none is due."""
        appointment = self.agenda.next()
        if appointment is None:
            return []
        names = self.settings.stages[appointment.stage_index].domains
        return [
            declared
            for declared in self.settings.domains
            if (not names or declared.name in names) and declared.name not in self.holds
        ]

    def begin_evaluation(self, now_s: float) -> None:
        """Starts the next evaluation once its policy is published; `held_out` holds its domains by then."""
        appointment = self.agenda.next()
        if self.running is not None or appointment is None or self.policy_version < appointment.min_version:
            return
        self.running = RunningEvaluation(
            name=appointment.name,
            stage_index=appointment.stage_index,
            step=appointment.step,
            min_version=appointment.min_version,
            held_out={declared.name: self.held_out[declared.name] for declared in self.to_evaluate()},
            started_s=now_s,
            deadline_s=self.settings.scheduler.group_deadline_s,
            max_attempts=self.settings.scheduler.max_group_attempts,
        )
        for group in self.running.groups.keys() & self.evaluation_past.keys():
            for message in self.evaluation_past.pop(group):
                if isinstance(message, Task):
                    self.running.observe_scheduled(group, message.attempt, message.created_ms / 1000)
                else:
                    self.running.observe_reward(message)

    @property
    def newest_version(self) -> int:
        """A step may be read before the policy that it made: the step's number is as good."""
        return max(self.policy_version, self.plan.step)

    def waits_for(self) -> str:
        if self.policy_version < 0:
            return "the first policy of the learner"
        if self.running is not None:
            return f"{counted(self.running.waiting, 'verdict')} of evaluation {self.running.name}"
        if self.paused:
            return f"the learner to be resumed (`temper resume`): {self.paused}"
        if self.plan.starved:
            held = "; ".join(f"{name} ({reason})" for name, reason in self.holds.items())
            return f"a domain to be lifted (`temper domains lift {self.settings.run_folder} DOMAIN`): {held}"
        if self.plan.in_flight:
            return f"{counted(self.plan.in_flight, 'group')} in flight at step {self.plan.step}"
        return ""


class SchedulerService:
    """One scheduler of one run."""

    def __init__(self, settings: Settings, worker_id: str) -> None:
        self._settings = settings
        self._worker_id = worker_id
        self._run_id = settings.run.name
        self._log = structlog.get_logger()
        self._names = TopicNames(settings.bus.namespace)
        self._producer = TypedProducer(settings, worker_id, ObjectStore(settings.storage_uri))
        self._tracing = Tracing.start(settings, "scheduler", worker_id)
        domains = {declared.name: load_domain(declared.name) for declared in settings.domains}
        self._domains = domains
        self._tasks = TaskBuilder(settings, domains)
        self._state = SchedulerState(settings, {domain.name: name for name, domain in domains.items()})
        self._progress_s = time.monotonic()
        self._sent = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Schedules until the run has ended or `stop` is set."""
        heartbeat = HeartbeatLoop(
            self._producer, self._names.workers, self._heartbeat, self._settings.telemetry.heartbeat_s
        )
        beating = asyncio.create_task(heartbeat.run(asyncio.Event()))
        try:
            await unless(stop, self._recover())
            await self._loop(stop)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            await self._producer.close()
            self._tracing.shutdown()

    async def _recover(self) -> None:
        """Reads the run's past in the order in which it can be understood: results, steps, tasks."""
        for topics in ([self._names.control], [self._names.policies, self._names.steps], self._task_topics()):
            reader = self._reader(topics)
            try:
                async for delivery in reader.to_end(POLL_S):
                    self._observe(delivery)
            finally:
                await reader.close()
        self._log.info(
            "scheduler.ready",
            step=self._state.plan.step,
            in_flight=self._state.plan.in_flight,
            ended=self._state.ended,
        )

    async def _loop(self, stop: asyncio.Event) -> None:
        names = self._names
        reader = self._reader([names.control, names.policies, names.steps, names.rewards])
        try:
            while not stop.is_set() and not self._state.ended:
                for delivery in await reader.poll(POLL_S, 1000):
                    self._observe(delivery)
                if reader.at_end():
                    await self._draw_held_out()
                    await self._act(time.time())
                await self._check_progress()
        finally:
            await reader.close()

    async def _draw_held_out(self) -> None:
        """In a thread, so that the heart beats on: a domain may take milliseconds an instance."""
        wanted = self._settings.evaluation.instances_per_domain
        for declared in self._state.to_evaluate():
            if declared.name in self._state.held_out:
                continue
            domain = self._domains[declared.name]
            found = await asyncio.to_thread(draw_held_out, domain, declared.difficulty, wanted)
            self._state.held_out[declared.name] = found
            if shortage := found.shortage(declared.name):
                self._log.warning("evaluation.too_few_instances", cause=shortage)

    async def _act(self, now_s: float) -> None:
        state = self._state
        if state.policy_version < 0:
            return
        await self._give_up(state.plan.give_up_held(), "their domain is held back")
        state.begin_evaluation(now_s)
        if state.running is not None:
            await self._evaluate(state.running, now_s)
        if not state.agenda.blocks_training:
            await self._train(now_s)
        if state.plan.finished and state.agenda.next() is None:
            await self._end()

    async def _evaluate(self, running: RunningEvaluation, now_s: float) -> None:
        for item in running.due(now_s):
            await self._send(self._tasks.evaluation(item, running, int(now_s * 1000)))
        if running.complete:
            result = running.result(self._run_id, time.time())
            await self._producer.send(self._names.control, result)
            self._state.observe(result, Headers())
            self._state.running = None
            self._log.info(
                "evaluation.done",
                name=result.name,
                **{name: f"{d.passed}/{d.count}" for name, d in result.domains.items()},
            )

    async def _train(self, now_s: float) -> None:
        again, given_up = self._state.plan.overdue(now_s)
        for plan in [*self._state.plan.admit(now_s), *again]:
            await self._send(self._tasks.training(plan, self._state.newest_version, int(now_s * 1000)))
        await self._give_up(given_up, "past every attempt")

    async def _give_up(self, groups: list[str], reason: str) -> None:
        if groups:
            self._log.warning("groups.abandoned", groups=groups, reason=reason)
            control = Control(run_id=self._run_id, kind="abandon", groups=tuple(groups), reason=reason)
            await self._producer.send(self._names.control, control)

    async def _send(self, task: Task) -> None:
        first = self._state.first_trace.get(task.group_id, "")
        attributes = {
            "temper.group_id": task.group_id,
            "temper.task": f"{task.group_id}/{task.attempt}",
            "temper.domain": task.domain.name,
            "temper.stage": task.stage,
            "temper.purpose": task.purpose,
        }
        with self._tracing.span(
            "schedule", root=True, links=(first,) if first else (), kind="producer", attributes=attributes
        ) as span:
            headers = Headers(attempt=task.attempt, deadline_ms=task.deadline_ms)
            await self._producer.send(self._names.tasks(task.workload, task.priority), task, headers)
            self._state.first_trace.setdefault(task.group_id, Tracing.traceparent(span))
        self._sent += 1

    async def _end(self) -> None:
        control = Control(
            run_id=self._run_id, kind="end", reason="every stage done", created_ms=int(time.time() * 1000)
        )
        await self._producer.send(self._names.control, control)
        self._state.ended = True
        self._log.info("run.ended", step=self._state.plan.step)

    def _observe(self, delivery: Delivery[Message]) -> None:
        before = dict(self._state.holds)
        if delivery.headers.run_id == self._run_id and self._state.observe(
            delivery.message, delivery.headers
        ):
            self._progress_s = time.monotonic()
        for name in self._state.holds.keys() ^ before.keys():
            held = name in self._state.holds
            self._log.warning(
                "domain.held" if held else "domain.lifted",
                domain=name,
                reason=self._state.holds.get(name, ""),
            )

    async def _check_progress(self) -> None:
        if self._state.paused:
            self._progress_s = time.monotonic()  # a person was asked: no clock runs
        waited = time.monotonic() - self._progress_s
        if waited > self._settings.scheduler.stall_s:
            peers = await self._peers()
            raise StalledError(
                f"run {self._run_id}: no progress for {waited:.0f} s, waiting for {self._state.waits_for() or 'nothing'}"
                f"{'; ' if peers else ''}{peers}; mend that, or raise scheduler.stall_s"
            )

    async def _peers(self) -> str:
        """Who of the others is gone, and what the living wait for."""
        beats: dict[str, Heartbeat] = {}
        reader = self._reader([self._names.workers])
        try:
            async for delivery in reader.to_end(POLL_S):
                beat = delivery.message
                if isinstance(beat, Heartbeat) and beat.run_id == self._run_id:
                    beats[beat.worker_id] = beat
        finally:
            await reader.close()
        return peers_in_words(beats.values(), int(time.time() * 1000), self._settings.telemetry.heartbeat_s)

    def _reader(self, topics: list[str]) -> LogReader:
        return LogReader(self._settings, "scheduler", topics, "earliest", self._producer)

    def _task_topics(self) -> list[str]:
        return [self._names.tasks(w.name, p) for w in self._settings.workloads for p in w.priorities]

    def _heartbeat(self) -> Heartbeat:
        waits = self._state.waits_for()
        state: WorkerState = "waiting" if waits else "working"
        return Heartbeat(
            run_id=self._run_id,
            worker_id=self._worker_id,
            service="scheduler",
            state=state,
            waits_for=waits,
            policy_version=self._state.policy_version,
            in_flight=self._state.plan.in_flight,
            processed=self._sent,
            gauges={
                "step": self._state.plan.step,
                "stage": self._state.plan.stage_index,
                "held": len(self._state.holds),
            },
        )


async def run(settings: Settings, worker_id: str, stop: asyncio.Event) -> None:
    """Runs the scheduler of `settings.run` until the run has ended (returns) or `stop` is set."""
    await SchedulerService(settings, worker_id).run(stop)
