"""A library's error as ours: its class once, whatever the library writes before its own text."""

from __future__ import annotations

import pytest
from kafka.errors import KafkaTimeoutError

from shared.bus.connect import bus_error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KafkaTimeoutError("no node is ready"), "x: KafkaTimeoutError: no node is ready"),
        (KafkaTimeoutError(), "x: KafkaTimeoutError"),
        (OSError(2, "gone"), "x: FileNotFoundError: [Errno 2] gone"),
        (ValueError("first\nsecond"), "x: ValueError: first"),
    ],
)
def test_the_class_is_said_once(error: Exception, said: str) -> None:
    assert str(bus_error("x", error)) == said
