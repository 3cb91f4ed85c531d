"""Idempotent producers: which batch is next, which one was seen before.

Invariant: for one producer id and epoch, a partition holds every sequence number once and in order.
The state is a pure function of the batches in the log, so it is rebuilt from their headers after a restart.
Source: KIP-98, "Idempotent Producer Guarantees"; five batches are remembered because a client may have five in flight.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.bus.devbroker.batches import MAX_SEQUENCE, BatchHeader
from shared.bus.devbroker.codes import Code, Refusal

REMEMBERED_BATCHES = 5


class BatchSpan(NamedTuple):
    """Where an accepted batch lies: sequence numbers and offsets, both ends included."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


@dataclass
class ProducerState:
    """What one partition knows of one producer id."""

    epoch: int
    batches: deque[BatchSpan] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    last_append_ms: int = 0


def last_sequence(first: int, count: int) -> int:
    """The last of `count` sequence numbers from `first`; they wrap from 2**31 - 1 to 0."""
    return (first + count - 1) % (MAX_SEQUENCE + 1)


class ProducerLedger:
    """Every producer id that wrote to one partition."""

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def check(self, header: BatchHeader) -> BatchSpan | None:
        """The span of an earlier copy of this batch, or None when the batch is new and next in line.

        Raises Refusal with INVALID_PRODUCER_EPOCH or OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        if header.producer_id < 0:
            return None
        state = self._states.get(header.producer_id)
        if state is None:
            return None  # as in Kafka: an unknown (or expired) producer may start anywhere
        if header.producer_epoch < state.epoch:
            raise Refusal(
                Code.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {state.epoch}, the batch says {header.producer_epoch}",
            )
        if header.producer_epoch > state.epoch:
            self._expect(header, 0)
            return None
        last = last_sequence(header.base_sequence, header.record_count)
        for span in state.batches:
            if span.first_sequence == header.base_sequence and span.last_sequence == last:
                return span
        if state.batches:
            self._expect(header, last_sequence(state.batches[-1].last_sequence, 2))
        return None

    def _expect(self, header: BatchHeader, sequence: int) -> None:
        if header.base_sequence != sequence:
            raise Refusal(
                Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} must go on at sequence {sequence}, not {header.base_sequence}",
            )

    def record(self, header: BatchHeader, now_ms: int) -> None:
        """Take note of a batch that is in the log; `header` has its final offsets."""
        if header.producer_id < 0:
            return
        state = self._states.get(header.producer_id)
        if state is None or state.epoch != header.producer_epoch:
            state = self._states[header.producer_id] = ProducerState(header.producer_epoch)
        # Not record_count: compaction may have taken records out, the span of offsets stays.
        last = last_sequence(header.base_sequence, header.last_offset_delta + 1)
        state.batches.append(
            BatchSpan(
                header.base_sequence, last, header.base_offset, header.last_offset, header.max_timestamp
            )
        )
        state.last_append_ms = now_ms

    def expire(self, older_than_ms: int) -> int:
        """Forget the producers that last wrote before `older_than_ms`; returns how many."""
        stale = [pid for pid, state in self._states.items() if state.last_append_ms < older_than_ms]
        for producer_id in stale:
            del self._states[producer_id]
        return len(stale)

    def last_base_offsets(self) -> set[int]:
        """Base offset of every producer's latest batch; compaction must leave those headers in place."""
        return {state.batches[-1].base_offset for state in self._states.values() if state.batches}
