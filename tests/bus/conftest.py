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


@pytest.fixture(params=KINDS)
def own_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of this test alone, to be killed, restarted and frozen."""
    if request.param == "kafka" and "KAFKA_HOME" not in os.environ:
        pytest.skip(NO_KAFKA_PROCESS)
    running = Broker(request.param, tmp_path_factory.mktemp("own") / request.param)
    running.start()
    try:
        yield running
    finally:
        running.kill()
