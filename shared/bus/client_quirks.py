"""Where kafka-python 3.0.12 needs help, and every private name of it that we touch.

Invariant: nothing else in the bus reaches into the client. Each function says what goes wrong without it; each has a
test that fails without it or when a later version has moved the name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shared.bus.delivery import RawRecord
from shared.bus.record_batch import BatchFrame, read_records


def partition_count(producer: Any, topic: str) -> int:
    """Partitions of `topic` as far as the producer knows; 0 where a send would have to wait for metadata first.

    The public `partitions_for` waits itself, and waiting must not happen on the asyncio loop.
    """
    return len(producer._metadata._partitions.get(topic, ()))


def submit(
    producer: Any,
    place: Any,
    record: tuple[bytes | None, bytes | None, list[tuple[str, bytes]]],
    done: Callable[[Any], None],
    failed: Callable[[BaseException], None],
) -> None:
    """Hand one record (key, value, headers) to the producer's accumulator. `done` (with its metadata) or `failed` comes in its thread.

    The public `send` ends in the same call, after checks that this bus has made already; they, and a log line that is
    formatted whether it is wanted or not, cost more than the rest of the send together.
    """
    sent, full, new, _ = producer._accumulator.append(place, None, *record)
    sent._add_cb_eb(done, failed)
    if full or new:
        producer._sender.wakeup()


def mend(producer: Any) -> None:
    """Let an idempotent producer outlive what its library takes as the end.

    A refused record (too large, say) is taken as fatal for ever: all later sends, to any topic, fail with that record's
    error. Here it bumps the producer's epoch instead (KIP-360), which starts new sequences, unless the error is fatal
    by its nature (authorization, fencing). And after a record that had been sent expired unanswered (an outage longer
    than the delivery timeout) the producer drops its id and never asks for another, so that every later send hangs.
    Here it asks again.
    """
    from kafka.producer.transaction_manager import TransactionState

    manager = producer._transaction_manager
    classify, reset = manager.classify_batch_error, manager.reset_producer_id

    def classify_mildly(error: Any, batch: Any, log_start_offset: int = -1) -> Any:
        kind = error if isinstance(error, type) else type(error)
        verdict = classify(error, batch, log_start_offset=log_start_offset)
        if verdict == manager.ERROR_CLASS_FATAL and kind not in manager._FATAL_ERRORS:
            return manager.ERROR_CLASS_NEEDS_EPOCH_BUMP
        return verdict

    def reset_and_ask_again() -> None:
        with manager._lock:
            reset()
            manager._current_state = TransactionState.UNINITIALIZED

    manager.classify_batch_error = classify_mildly
    manager.reset_producer_id = reset_and_ask_again


def is_poisoned(producer: Any) -> bool:
    """Whether a fatal error has ended this producer: it has to be replaced."""
    return bool(producer._transaction_manager.has_fatal_error())


def close(producer: Any, timeout_s: float) -> None:
    """Close a producer whatever it still holds. Its own `close` gives up half-way when it cannot flush."""
    try:
        producer.close(timeout=timeout_s)
    except Exception:  # noqa: BLE001  (what was not acknowledged raises in its own send)
        producer._sender.force_close()
        producer._sender.join(1.0)
        producer._closed = True


def sleep(consumer: Any, seconds: float) -> Any:
    """An awaitable for rebalance listeners, which run on the client's own loop. It has no public sleep."""
    return consumer._net.sleep(seconds)


def load_metadata(consumer: Any, topics: Sequence[str]) -> list[str]:
    """Learn the partitions of `topics` before joining a group; returns those that do not exist.

    A leader that joins without metadata assigns nothing to anybody and has to start a second rebalance.
    """
    return [topic for topic in topics if not consumer.partitions_for_topic(topic)]


def finish_join(consumer: Any) -> None:
    """Call after every poll that may have timed out.

    A poll that times out while JoinGroup or SyncGroup is on its way leaves the join to the next poll. When the join
    had been caused by new metadata (not by the broker), the next poll believes that nothing is left to do: the answer
    is never taken up, heartbeats stay off, and the member owns nothing until its session is over.
    """
    from kafka.structs import MemberState

    coordinator = consumer._coordinator
    if coordinator.state is MemberState.REBALANCING:
        coordinator.request_rejoin()


def join_pending(consumer: Any) -> bool:
    """Whether the member has to (re)join: then a poll must have time for the round trips.

    A join that is answered between two polls is thrown away and started again, so polls that return at once would
    never get through one.
    """
    from kafka.structs import MemberState

    coordinator = consumer._coordinator
    return coordinator.state is not MemberState.STABLE or bool(coordinator.need_rejoin())


def read_raw_records(consumer: Any) -> None:
    """Let `poll` return `RawRecord`s, each batch read in one pass (`record_batch` says what for).

    Deserializers and `read_committed` are not served; neither is used here.
    """
    fetcher = consumer._fetcher
    assert fetcher.config["key_deserializer"] is fetcher.config["value_deserializer"] is None
    assert fetcher.config["isolation_level"] == "read_uncommitted"
    fetcher.PartitionRecords = _raw_partition_records()


@functools.cache
def _raw_partition_records() -> type:
    """Made on first use: nothing of Kafka is imported before that."""
    from kafka.consumer.fetcher import Fetcher

    class RawPartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
        """What the library makes of one partition's part of a fetch; this generator is all that differs."""

        def _unpack_records(self, place: Any, records: Any, *_: Any) -> Iterator[RawRecord]:
            batch = records.next_batch()
            while batch is not None:
                for record in _records_of(batch, place):
                    # One by one: a poll may take a part only, and goes on at this offset then.
                    self.next_fetch_offset = record.offset + 1
                    yield record
                if batch.magic == 2:
                    self.leader_epoch = batch.leader_epoch
                    # A batch keeps its last offset when compaction takes the record there.
                    self.next_fetch_offset = batch.next_offset
                batch = records.next_batch()
            self.drain()

    return RawPartitionRecords


def _records_of(batch: Any, place: Any) -> list[RawRecord]:
    from kafka.errors import CorruptRecordError

    topic, partition = place
    if batch.magic < 2:  # written by a client from before Kafka 0.11
        records = list(batch)
        if not all(record.validate_crc() for record in records):
            raise CorruptRecordError(f"a record of {place} fails its checksum")
        return [RawRecord(topic, partition, r.offset, r.timestamp, r.key, r.value, []) for r in records]
    if not batch.validate_crc():
        raise CorruptRecordError(f"a batch of {place} at {batch.base_offset} fails its checksum")
    if batch.is_control_batch:
        return []
    batch._maybe_uncompress()
    appended = batch.max_timestamp if batch.timestamp_type == batch.LOG_APPEND_TIME else None
    frame = BatchFrame(
        topic, partition, batch.base_offset, batch.first_timestamp, appended, batch.records_count
    )
    try:
        return read_records(frame, bytes(memoryview(batch._buffer)[batch._pos :]))
    except (ValueError, IndexError) as error:
        raise CorruptRecordError(
            f"a batch of {place} at {batch.base_offset} cannot be read: {error}"
        ) from error
