"""Feeds the intake from the topics.

Invariant: `positions()` is exact at every moment between two polls: everything before it has been fed. Nothing is
read while enough is buffered, so the topics hold what the learner cannot use yet. A record that nothing can be
learnt from is a dead letter too, as it was, before anything after it counts as read.
"""

from __future__ import annotations

import structlog

from services.learner.intake.join import Arrival
from services.learner.intake.offsets import Place, Shard
from services.learner.intake.topics import intake_topics
from services.learner.intake.unfit import unfit
from services.learner.trainer import Trainer
from shared.bus.deadletters import DeadLetters
from shared.bus.delivery import Delivery
from shared.bus.log_cursor import OffsetLostError
from shared.bus.producer import TypedProducer
from shared.bus.reader import LogReader
from shared.contracts import Message, Reward, Trajectory
from shared.errors import ContractError
from shared.settings import Settings

_MAX_RECORDS = 500


def may_read_ahead(buffered_groups: int, limit: int) -> bool:
    """Whether to read more while a step is computed. Where a batch is missing groups, reading always goes on."""
    return buffered_groups < limit


class IntakeReader:
    """Reads from where the trainer's checkpoint says."""

    def __init__(self, settings: Settings, trainer: Trainer, producer: TypedProducer) -> None:
        self._run_id = settings.run.name
        self._trainer = trainer
        self._log = structlog.get_logger()
        start = trainer.gate.start()
        self._reader = LogReader(settings, "learner", intake_topics(settings), start or "earliest", producer)
        self._waiting: list[Delivery[Message]] = []
        self._dead = DeadLetters(producer, settings, "learner")
        self._unfit: list[tuple[Delivery[Message], ContractError]] = []
        self.records = 0
        self.invalid = 0
        """Records that became dead letters here although they could be read."""

    async def poll(self, timeout_s: float) -> int:
        """Reads and feeds; how many records came. Raises `BusError` where the broker gives up on us."""
        try:
            deliveries = await self._reader.poll(timeout_s, _MAX_RECORDS)
        except OffsetLostError as loss:
            # Said by the reader already; what can still be had is had, and what is gone is named below.
            self._log.error("learner.records_lost", topic=loss.topic, partition=loss.partition)
            deliveries = []
        for delivery in deliveries:
            self._take(delivery)
        self._open_gate()
        await self._bury()
        self.records += len(deliveries)
        return len(deliveries)

    def positions(self) -> dict[Shard, int]:
        """The next offset to read of every partition."""
        return self._reader.positions()

    def lag(self) -> int:
        return self._reader.lag()

    async def close(self) -> None:
        await self._reader.close()

    def _take(self, delivery: Delivery[Message]) -> None:
        admission = self._trainer.gate.admit(Place(*delivery.position))
        if admission == "replayed":
            self._feed(delivery, again=True)
        elif admission == "new":
            self._waiting.append(delivery)

    def _open_gate(self) -> None:
        gate = self._trainer.gate
        if not gate.open:
            lost = gate.give_up(self._reader.positions())
            if lost:
                self._log.error("learner.replay_incomplete", lost=[str(place) for place in lost[:20]])
        if gate.open:
            waiting, self._waiting = self._waiting, []
            for delivery in waiting:
                self._feed(delivery)

    def _feed(self, delivery: Delivery[Message], again: bool = False) -> None:
        message = delivery.message
        if not isinstance(message, Trajectory | Reward) or not self._is_ours(message):
            return
        intake = self._trainer.intake
        reason = "" if again else unfit(message, intake, self._trainer.vocabulary)
        if reason:
            named = f"trajectory {message.trajectory_id} ({message.slot})"
            self._unfit.append((delivery, ContractError(f"{named}: {reason}")))
        place, trace = Place(*delivery.position), delivery.headers.traceparent
        if isinstance(message, Trajectory):
            intake.trajectory(Arrival(message, place, trace))
        else:
            intake.reward(Arrival(message, place, trace))

    async def _bury(self) -> None:
        unfit, self._unfit = self._unfit, []
        for delivery, error in unfit:
            await self._dead.send(delivery.record, error)
            self.invalid += 1
            self._log.error("record.invalid", position=str(delivery.position), error=str(error))

    def _is_ours(self, message: Trajectory | Reward) -> bool:
        return message.slot.run_id == self._run_id and message.purpose == "train"
