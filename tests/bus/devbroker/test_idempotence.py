"""Idempotent producers: an answer that got lost must not become a second record."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.bus.devbroker.batches import MAX_SEQUENCE, BatchHeader
from shared.bus.devbroker.codes import Code, Refusal
from shared.bus.devbroker.faults import FaultAction, FaultRule
from shared.bus.devbroker.producers import ProducerLedger, last_sequence
from shared.bus.devbroker.running import RunningBroker
from shared.bus.devbroker.settings import DevBrokerSettings
from tests.bus.devbroker.clients import create, producer, read

pytestmark = pytest.mark.timeout(60)


def header(first: int, count: int, base_offset: int = 0, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    return BatchHeader(base_offset, 100, 0, 2, 0, 0, count - 1, 0, 0, producer_id, epoch, first, count)


def test_dropped_answers_make_no_duplicates(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    rule = broker.faults.add(FaultRule(FaultAction.DROP_RESPONSE, api="Produce", count=3))
    with producer(broker.bootstrap, enable_idempotence=True, retry_backoff_ms=20, linger_ms=5) as client:
        futures = [client.send("t", b"%d" % index, partition=0) for index in range(200)]
        offsets = [future.get(20).offset for future in futures]
    assert rule.hits == 3
    assert offsets == list(range(200))
    assert [record.value for record in read(broker.bootstrap, "t", 300, timeout_s=2)] == [
        b"%d" % i for i in range(200)
    ]


def test_without_idempotence_the_same_fault_does_duplicate(broker: RunningBroker) -> None:
    """The check on the check: the fault really makes the client send again."""
    create(broker.bootstrap, "t")
    broker.faults.add(FaultRule(FaultAction.DROP_RESPONSE, api="Produce", count=1))
    with producer(broker.bootstrap, enable_idempotence=False, retries=5, retry_backoff_ms=20) as client:
        client.send("t", b"x", partition=0).get(20)
    assert [record.value for record in read(broker.bootstrap, "t", 2, timeout_s=5)] == [b"x", b"x"]


def test_the_sequence_goes_on_after_a_restart(
    make_settings: Callable[..., DevBrokerSettings], tmp_path: Path
) -> None:
    first = make_settings()
    with RunningBroker(first) as broker:
        create(broker.bootstrap, "t")
        port = broker.port
        client = producer(broker.bootstrap, enable_idempotence=True, retry_backoff_ms=20)
        sender = client.__enter__()
        sender.send("t", b"one", partition=0).get(10)
    with RunningBroker(first.model_copy(update={"port": port})) as broker:
        rule = broker.faults.add(FaultRule(FaultAction.DROP_RESPONSE, api="Produce", count=1))
        sender.send("t", b"two", partition=0).get(20)
        assert rule.hits == 1
        client.__exit__(None, None, None)
        records = read(broker.bootstrap, "t", 3, timeout_s=2)
    assert [record.value for record in records] == [b"one", b"two"]


def test_a_duplicate_is_answered_with_its_first_offset() -> None:
    ledger = ProducerLedger()
    for index in range(5):
        batch = header(index * 10, 10, base_offset=100 + index * 10)
        assert ledger.check(batch) is None
        ledger.record(batch, 0)
    span = ledger.check(header(20, 10))
    assert span is not None
    assert (span.base_offset, span.last_offset) == (120, 129)


@pytest.mark.parametrize("first", [0, 49, 51, 60])
def test_a_gap_or_an_overlap_is_refused(first: int) -> None:
    ledger = ProducerLedger()
    for index in range(5):
        ledger.record(header(index * 10, 10), 0)
    ledger.check(header(50, 10))  # the one that may come
    with pytest.raises(Refusal) as refused:
        ledger.check(header(first, 11))
    assert refused.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_epochs_only_go_up_and_start_anew() -> None:
    ledger = ProducerLedger()
    ledger.record(header(0, 10, epoch=3), 0)
    with pytest.raises(Refusal) as refused:
        ledger.check(header(10, 1, epoch=2))
    assert refused.value.code is Code.INVALID_PRODUCER_EPOCH
    with pytest.raises(Refusal) as refused:
        ledger.check(header(10, 1, epoch=4))
    assert refused.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert ledger.check(header(0, 1, epoch=4)) is None


def test_idle_producers_are_forgotten() -> None:
    ledger = ProducerLedger()
    ledger.record(header(0, 1, producer_id=1), 100)
    ledger.record(header(0, 1, producer_id=2), 200)
    assert ledger.expire(150) == 1
    assert len(ledger) == 1


@settings(max_examples=200, deadline=None)
@given(
    start=st.sampled_from([0, 5, MAX_SEQUENCE - 3]),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=30),
    resend=st.lists(st.tuples(st.integers(0, 29), st.integers(0, 4)), max_size=30),
)
def test_every_sequence_number_is_stored_once(
    start: int, sizes: list[int], resend: list[tuple[int, int]]
) -> None:
    """Batches in order, each possibly followed by copies of any of the last five: the log has each once."""
    ledger, stored, sent = ProducerLedger(), list[tuple[int, int]](), list[tuple[int, int, int]]()
    sequence = start
    for index, size in enumerate(sizes):
        batch = header(sequence, size, base_offset=len(stored))
        assert ledger.check(batch) is None
        ledger.record(batch, 0)
        sent.append((sequence, size, len(stored)))
        stored += [(sequence, size)] * 1
        for after, back in resend:
            if after == index and back < len(sent):
                first, count, offset = sent[-1 - back]
                span = ledger.check(header(first, count))
                assert span is not None
                assert span.base_offset == offset
        sequence = last_sequence(sequence, size + 1)
    assert len(stored) == len(sizes)
    rebuilt = ProducerLedger()
    for first, count, offset in sent:
        rebuilt.record(header(first, count, base_offset=offset), 0)
    last = sent[-1]
    assert rebuilt.check(header(last[0], last[1])) == ledger.check(header(last[0], last[1]))
