"""Fixtures that every test folder may use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from shared.settings import Settings
from tests.brokers import Broker, running_broker, settings_for


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """Commands that run in this process set up its log: tests after them look for lines where they used to be."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        root.setLevel(level)
        for handler in set(root.handlers) - set(handlers):
            if not type(handler).__module__.startswith("_pytest"):
                root.removeHandler(handler)


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
