"""Fixtures that every test folder may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.settings import Settings
from tests.brokers import Broker, running_broker, settings_for


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running dev broker, one for the session. `tests/bus` overrides it to run on Apache Kafka too."""
    with running_broker("devbroker", tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def make_settings(broker: Broker, tmp_path: Path) -> Callable[..., Settings]:
    """`settings_for` on this test's broker and folder: every call is a namespace of its own, topics created."""

    def make(**overrides: Any) -> Settings:
        return settings_for(broker, tmp_path, **overrides)

    return make
