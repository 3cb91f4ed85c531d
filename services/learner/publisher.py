"""Announces policies and steps once their checkpoint is complete.

Invariant: a policy is told after its checkpoint is complete, and its steps after it; the weights of an older one are
removed after that. One checkpoint is on its way at a time.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from services.learner.compute import ComputeThread
from services.learner.kept import scores_of
from services.learner.snapshot import Announcement, with_seconds, with_total
from services.learner.spans import StepSpans
from services.learner.staging import Staged
from services.learner.trainer import Trainer
from shared.bus.control import ControlWatcher
from shared.bus.producer import TypedProducer
from shared.bus.topics import TopicNames
from shared.kill_points import reached
from shared.settings import Settings
from shared.telemetry.tracing import Tracing


class Publisher:
    """Of one learner. `spans`: of steps that are taken and not told."""

    def __init__(
        self, settings: Settings, producer: TypedProducer, tracing: Tracing, control: ControlWatcher
    ) -> None:
        self._keep = settings.learner.keep
        self._names = TopicNames(settings.bus.namespace)
        self._producer = producer
        self._tracing = tracing
        self._control = control
        self._disk = ComputeThread("learner-disk")
        self._log = structlog.get_logger()
        self.spans: dict[int, StepSpans] = {}
        self.gauges: dict[str, float] = {}
        self.job: asyncio.Task[None] | None = None
        """Until it is known how the newest checkpoint went."""

    @property
    def failed(self) -> bool:
        return self.job is not None and self.job.done() and self.job.exception() is not None

    def begin(self, trainer: Trainer, staged: Staged, held_up: float) -> None:
        """Starts writing and announcing; `job` must have been waited for before."""
        self.job = asyncio.create_task(self._publish(trainer, staged, held_up))

    async def _publish(self, trainer: Trainer, staged: Staged, held_up: float) -> None:
        announcement = await self._disk.submit(trainer.write, staged)
        reached("before_publish", announcement.policy.version)
        await self.announce(trainer, announcement, held_up)

    async def announce(self, trainer: Trainer, announcement: Announcement, held_up: float) -> None:
        """The policy first: whoever hears of the step may count on its policy. `held_up`: seconds that the checkpoint
        kept the next step waiting; the rest of it happened beside that."""
        began = time.monotonic()
        await self._producer.send(self._names.policies, announcement.policy)
        reached("before_steps", announcement.policy.version)
        beside = {"write": announcement.seconds, "publish": time.monotonic() - began}
        for step in with_seconds(announcement.steps, checkpoint=held_up):
            (whole,) = with_seconds((with_total(step),), **beside)
            await self._producer.send(self._names.steps, whole)
            spans = self.spans.pop(step.step, None) or StepSpans(self._tracing, step.step)
            spans.finish(step)
        self.gauges["checkpoint_seconds"] = announcement.seconds
        await self._prune(trainer)
        self._log.info(
            "policy.announced",
            version=announcement.policy.version,
            sha256=announcement.policy.weights.sha256[:12],
            delta_bytes=sum(delta.size_bytes for delta in announcement.policy.deltas[-1:]),
            checkpoint_seconds=round(announcement.seconds, 2),
            held_up_seconds=round(held_up, 3),
        )

    async def _prune(self, trainer: Trainer) -> None:
        if self._keep.best and not self._control.caught_up.is_set():
            return  # what is best is not known yet; the next checkpoint prunes
        scores = scores_of(self._control.evaluations.values(), self._keep.best_of, trainer.evaluated)
        await self._disk.submit(trainer.prune, scores)

    async def close(self) -> None:
        """What is on its way is finished and told where that is still possible. If the learner leaves for another
        reason, that is what must be said and not how this went."""
        if self.job is not None:
            await asyncio.gather(self.job, return_exceptions=True)
        for spans in self.spans.values():
            spans.abandon()
