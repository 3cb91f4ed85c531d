"""Logs: every event is one readable line that names its worker, and nothing that is logged can raise."""

from __future__ import annotations

import io
import json
import logging
import warnings
from pathlib import Path

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.settings import TelemetrySettings
from shared.telemetry.logging import configure_logging
from shared.telemetry.tracing import Tracing
from tests.telemetry.run_settings import run_settings


@pytest.fixture(autouse=True)
def _restore():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def configured(form: str = "json", level: str = "info", encoding: str = "utf-8") -> io.BytesIO:
    raw = io.BytesIO()
    configure_logging(
        TelemetrySettings(log_format=form, log_level=level),
        service="rollout", worker_id="rollout-0", run_id="r1",
        stream=io.TextIOWrapper(raw, encoding=encoding, write_through=True),
    )  # fmt: skip
    return raw


def events(raw: io.BytesIO) -> list[dict]:
    return [json.loads(line) for line in raw.getvalue().decode().splitlines()]


def test_an_event_names_its_worker():
    raw = configured()
    structlog.get_logger().info("policy loaded", version=3)
    (event,) = events(raw)
    assert event["event"] == "policy loaded" and event["version"] == 3 and event["level"] == "info"
    assert (event["service"], event["worker_id"], event["run_id"]) == ("rollout", "rollout-0", "r1")


def test_the_level_holds():
    raw = configured(level="warning")
    structlog.get_logger().info("no")
    structlog.get_logger().warning("yes")
    assert [event["event"] for event in events(raw)] == ["yes"]


def test_libraries_are_heard_from_warning_up_in_the_same_form():
    raw = configured()
    logging.getLogger().handlers[:-1] = []  # the test runner's own, which raises for a broken format
    logging.getLogger("kafka.client").info("bootstrapped")
    logging.getLogger("kafka.client").warning("node %s gone", 1)
    logging.getLogger("kafka.client").warning("broken %d format", "x")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old call", DeprecationWarning, stacklevel=1)
    first, second, third = events(raw)
    assert (first["event"], first["logger"], first["worker_id"]) == (
        "node 1 gone",
        "kafka.client",
        "rollout-0",
    )
    assert second["event"].startswith("broken %d format (TypeError")
    assert "old call" in third["event"]


def test_what_is_no_fault_is_heard_on_request_only():
    noise = logging.getLogger("kafka.net.selector")
    raw = configured()
    noise.warning("a task took 0.1 s")
    noise.error("the selector broke")
    assert [event["event"] for event in events(raw)] == ["the selector broke"]
    raw = configured(level="debug")
    noise.warning("a task took 0.1 s")
    assert [event["event"] for event in events(raw)] == ["a task took 0.1 s"]


def test_an_exception_comes_with_its_traceback():
    raw = configured()
    try:
        raise ValueError("no \udcff such thing")
    except ValueError:
        structlog.get_logger().exception("attempt failed")
    (event,) = events(raw)
    assert "ValueError: no \\udcff such thing" in event["exception"] and event["level"] == "error"


def test_an_event_inside_a_span_names_its_trace(tmp_path: Path):
    raw = configured()
    with Tracing.start(run_settings(tmp_path), "rollout", "rollout-0", environment={}).span(
        "attempt"
    ) as span:
        structlog.get_logger().info("inside")
    structlog.get_logger().info("outside")
    inside, outside = events(raw)
    assert inside["trace_id"] == f"{span.get_span_context().trace_id:032x}"
    assert "trace_id" not in outside


def test_the_console_keeps_an_event_on_one_line():
    raw = configured("console")
    structlog.get_logger().warning(
        "answer\nof the \x1b[2J policy", text="a b\r\nc", empty="", table={"k": "v"}
    )
    assert raw.getvalue().decode()[8:] == (
        ' warning  rollout-0    answer\\nof the \\x1b[2J policy  text="a b\\\\r\\\\nc" empty="" table={"k": "v"}\n'
    )


def test_a_narrow_terminal_gets_escapes():
    raw = configured("console", encoding="ascii")
    structlog.get_logger().info("x ≤ 3 \ud800")
    assert rb"x \u2264 3 \ud800" in raw.getvalue()


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("form", ["json", "console"])
@settings(max_examples=60)
@given(
    event=st.text(st.characters(codec=None, categories=None)),
    value=st.one_of(st.binary(), st.floats(), st.text(st.characters(categories=["Cs", "Cc", "L"])),
                    st.just(Unshowable()), st.dictionaries(st.text(), st.binary()), st.just(Path("x"))),
)  # fmt: skip
def test_whatever_is_logged_is_one_line(form: str, event: str, value: object):
    raw = configured(form)
    structlog.get_logger().info(event, value=value)
    text = raw.getvalue().decode()
    assert text.endswith("\n") and len(text.split("\n")) == 2
    if form == "json":
        json.loads(text)


def test_a_closed_stream_does_not_end_the_service():
    stream = io.StringIO()
    configure_logging(TelemetrySettings(), service="s", worker_id="s-0", run_id="r", stream=stream)
    stream.close()
    structlog.get_logger().info("into the void")
    logging.getLogger("kafka").warning("into the void")
