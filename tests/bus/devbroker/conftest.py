"""A dev broker for each test, in this process, with chores that run often."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.bus.devbroker.running import RunningBroker
from shared.bus.devbroker.settings import DevBrokerSettings


@pytest.fixture
def make_settings(tmp_path: Path) -> Callable[..., DevBrokerSettings]:
    def make(**changes: Any) -> DevBrokerSettings:
        return DevBrokerSettings(**{"data_dir": tmp_path / "data", "check_interval_ms": 50, **changes})

    return make


@pytest.fixture
def broker(make_settings: Callable[..., DevBrokerSettings]) -> Iterator[RunningBroker]:
    with RunningBroker(make_settings()) as running:
        yield running
