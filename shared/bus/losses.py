"""Records lost to retention, said aloud.

Invariant: every loss is an error event, a count, and a letter in `dead.<service>` with error.type `OffsetLost` that
names the range; consumption goes on at what is left.
"""

from __future__ import annotations

import asyncio
import json

import structlog

from shared.bus.log_cursor import OffsetLostError
from shared.bus.producer import TypedProducer
from shared.bus.topics import TopicNames
from shared.errors import TemperError
from shared.settings import Settings

OFFSET_LOST = "OffsetLost"
_log = structlog.get_logger(__name__)
_CLOSE_S = 5.0


class LossRecorder:
    """Runs on the asyncio loop."""

    def __init__(self, settings: Settings, service: str, producer: TypedProducer) -> None:
        self._topic = TopicNames(settings.bus.namespace).dead(service)
        self._run_id = settings.run.name
        self._producer = producer
        self._writing: set[asyncio.Task[None]] = set()
        self.count = 0

    def report(self, loss: OffsetLostError) -> None:
        self.count += 1
        _log.error(
            "records lost",
            topic=loss.topic,
            partition=loss.partition,
            wanted=loss.wanted,
            continues_at=loss.continues_at,
            error=str(loss),
        )
        task = asyncio.get_running_loop().create_task(self._write(loss))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def close(self) -> None:
        """Wait, five seconds at most, for letters on their way."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=_CLOSE_S)

    async def _write(self, loss: OffsetLostError) -> None:
        body = {
            "topic": loss.topic,
            "partition": loss.partition,
            "first_lost": loss.wanted,
            "continues_at": loss.continues_at,
        }
        headers = [
            ("run_id", self._run_id.encode()),
            ("error.type", OFFSET_LOST.encode()),
            ("error.message", str(loss).encode()),
            ("origin", f"{loss.topic}/{loss.partition}/{loss.wanted}".encode()),
        ]
        try:
            await self._producer.send_raw(
                self._topic, f"{loss.topic}/{loss.partition}".encode(), json.dumps(body).encode(), headers
            )
        except TemperError as error:
            _log.error("loss record not written", topic=self._topic, error=str(error))
