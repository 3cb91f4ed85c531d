"""Fault rules do what they say, to the requests that they name, as often as they say."""

import time

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaError, NotLeaderForPartitionError

from shared.bus.devbroker.codes import Code
from shared.bus.devbroker.faults import FaultAction, FaultBook, FaultRule
from shared.bus.devbroker.running import RunningBroker
from tests.bus.devbroker.clients import consumer, create, producer, read, send

pytestmark = pytest.mark.timeout(60)


def test_an_error_code_reaches_the_client_and_nothing_is_stored(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    rule = broker.faults.add(
        FaultRule(FaultAction.ERROR, api="Produce", topic="t", code=Code.INVALID_RECORD, count=1)
    )
    with pytest.raises(KafkaError, match="87"):
        send(broker.bootstrap, "t", [b"x"])
    assert rule.hits == 1
    assert send(broker.bootstrap, "t", [b"y"]) == [0]


def test_a_retriable_error_is_retried_by_the_client(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    broker.faults.add(FaultRule(FaultAction.ERROR, api="Produce", code=Code.NOT_LEADER_OR_FOLLOWER, count=2))
    with producer(broker.bootstrap, retry_backoff_ms=10) as client:
        assert client.send("t", b"x").get(20).offset == 0
    assert NotLeaderForPartitionError.errno == Code.NOT_LEADER_OR_FOLLOWER


def test_a_delay_delays(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    broker.faults.add(FaultRule(FaultAction.DELAY, api="Produce", delay_ms=400, count=1))
    started = time.monotonic()
    send(broker.bootstrap, "t", [b"x"])
    assert time.monotonic() - started >= 0.4


def test_a_dropped_connection_does_no_work(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    broker.faults.add(FaultRule(FaultAction.DROP_CONNECTION, api="Produce", count=1))
    with producer(broker.bootstrap, enable_idempotence=False, retries=5, retry_backoff_ms=20) as client:
        assert client.send("t", b"x").get(20).offset == 0
    assert len(read(broker.bootstrap, "t", 2, timeout_s=1)) == 1


def test_a_freeze_answers_nothing_until_it_is_lifted(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    with producer(broker.bootstrap) as client:
        client.send("t", b"warm").get(10)
        rule = broker.faults.add(FaultRule(FaultAction.FREEZE))
        future = client.send("t", b"frozen")
        assert broker.faults.wait_for_hits(rule, 1, timeout_s=5)
        time.sleep(0.3)
        assert not future.is_done
        broker.faults.remove(rule)
        assert future.get(10).offset == 1


def test_only_the_named_topic_and_client_are_hit(broker: RunningBroker) -> None:
    create(broker.bootstrap, "a")
    create(broker.bootstrap, "b")
    broker.faults.add(FaultRule(FaultAction.ERROR, api="Produce", topic="a", code=Code.INVALID_RECORD))
    broker.faults.add(FaultRule(FaultAction.ERROR, api="Produce", client_id="evil", code=Code.INVALID_RECORD))
    assert send(broker.bootstrap, "b", [b"x"], client_id="good") == [0]
    with pytest.raises(KafkaError):
        send(broker.bootstrap, "a", [b"x"], client_id="good")
    with pytest.raises(KafkaError):
        send(broker.bootstrap, "b", [b"x"], client_id="evil")


def test_a_frozen_fetch_by_topic_id_is_matched(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    send(broker.bootstrap, "t", [b"x"])
    rule = broker.faults.add(
        FaultRule(FaultAction.ERROR, api="Fetch", topic="t", code=Code.NOT_LEADER_OR_FOLLOWER, count=1)
    )
    assert len(read(broker.bootstrap, "t", 1)) == 1
    assert rule.hits == 1


def test_an_offset_fetch_is_matched_by_its_topic(broker: RunningBroker) -> None:
    create(broker.bootstrap, "t")
    rule = broker.faults.add(FaultRule(FaultAction.DELAY, api="OffsetFetch", topic="t", delay_ms=1))
    other = broker.faults.add(FaultRule(FaultAction.DELAY, api="OffsetFetch", topic="other", delay_ms=1))
    with consumer(broker.bootstrap, group_id="g") as client:
        assert client.committed(TopicPartition("t", 0)) is None
    assert (rule.hits, other.hits) == (1, 0)


def test_rules_act_in_order_and_count() -> None:
    book = FaultBook()
    first = book.add(FaultRule(FaultAction.DELAY, api="Fetch", count=1))
    second = book.add(FaultRule(FaultAction.DROP_CONNECTION))
    assert book.take("Fetch", frozenset(), "c") is first
    assert book.take("Fetch", frozenset(), "c") is second
    assert book.take("Produce", frozenset(), "c") is second
    book.clear()
    assert book.take("Fetch", frozenset(), "c") is None
    assert not book.needed()
