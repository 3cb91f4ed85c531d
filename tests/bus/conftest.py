"""Every bus test runs on the dev broker and on Apache Kafka."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.brokers import KINDS, NO_KAFKA_PROCESS, Broker, running_broker


@pytest.fixture(scope="session", params=KINDS)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(request.param, tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module", params=KINDS)
def mortal_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    if request.param == "kafka" and "KAFKA_HOME" not in os.environ:
        pytest.skip(NO_KAFKA_PROCESS)
    running = Broker(request.param, tmp_path_factory.mktemp("own") / request.param)
    running.start()
    try:
        yield running
    finally:
        running.kill()


@pytest.fixture
def own_broker(mortal_broker: Broker) -> Broker:
    """A broker that runs, to be killed, restarted and frozen. Tests of a module have it one after the other."""
    return mortal_broker.start()
