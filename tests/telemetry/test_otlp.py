"""OTLP: a real collector gets every trace, connected; a collector that is not there costs nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shared.contracts import Headers
from shared.errors import ConfigError
from shared.telemetry.propagation import inject, traceparent_of
from shared.telemetry.span_log import read_spans
from shared.telemetry.tracing import Tracing
from tests.telemetry.jaeger import NOT_RUN, Jaeger, available, differences, free_ports, jaeger, parent_of
from tests.telemetry.run_settings import run_settings

SERVICES = ("scheduler", "rollout", "verifier", "learner")


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Jaeger]:
    if not available():
        pytest.skip(NOT_RUN)
    with jaeger(tmp_path) as running:
        yield running


def one_task(tracings: dict[str, Tracing], samples: int, step: str) -> str:
    """A task through the four services, every hop over record headers; its trace id."""
    with tracings["scheduler"].span("schedule") as schedule:
        task = inject(Headers())
    sent = []
    with tracings["rollout"].span("attempt", parent=task):
        for index in range(samples):
            with tracings["rollout"].span("sample", attributes={"temper.trajectory_id": f"t{index}"}):
                sent.append(inject(Headers()))
    for headers in sent:
        with tracings["verifier"].span("verify", parent=headers):
            reward = inject(headers)
        with tracings["learner"].span("train", parent=reward, links=[step]):
            pass
    return f"{schedule.get_span_context().trace_id:032x}"


@pytest.mark.slow
def test_every_trace_arrives_connected(collector: Jaeger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.otlp_url)
    settings = run_settings(tmp_path)
    tracings = {name: Tracing.start(settings, name, f"{name}-0") for name in SERVICES}
    with tracings["learner"].span("step", root=True, attributes={"bad": "\ud800"}) as step:
        pass
    traces = [one_task(tracings, 4, traceparent_of(step)) for _ in range(200)]
    for tracing in tracings.values():
        tracing.shutdown()
    for trace_id in traces:
        spans = collector.trace_when(trace_id, 14)
        ids = {span["spanID"] for span in spans}
        assert sorted(span["operationName"] for span in spans) == sorted(
            ["schedule", "attempt"] + ["sample", "verify", "train"] * 4
        )
        assert [span["operationName"] for span in spans if parent_of(span) not in ids] == ["schedule"]
    step_spans = collector.trace_when(f"{step.get_span_context().trace_id:032x}", 1)
    assert {tag["key"]: tag["value"] for tag in step_spans[0]["tags"]}["bad"] == "\\ud800"
    written = read_spans(settings.run_folder / "traces").spans
    assert len(written) == 200 * 14 + 1
    assert differences(collector, written) == []
    absent = replace(written[0], span_id="f" * 16)
    assert "not arrived" in differences(collector, [absent])[0]


@pytest.mark.parametrize("listening", [False, True], ids=["nobody listens", "accepts and never answers"])
def test_a_collector_that_is_away_costs_nothing(
    listening: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (port,) = free_ports(1)
    server = socket.create_server(("127.0.0.1", port)) if listening else None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{port}/v1/traces")
    tracing = Tracing.start(run_settings(tmp_path), "rollout", "rollout-0")
    begun = time.monotonic()
    for _ in range(1000):
        with tracing.span("attempt"):
            pass
    worked = time.monotonic() - begun
    tracing.shutdown(timeout_s=1.0)
    stopped = time.monotonic() - begun - worked
    if server is not None:
        server.close()
    assert worked < 5 and stopped < 2
    assert len(read_spans(tmp_path / "quiet" / "traces").spans) == 1000


def test_a_protocol_that_is_not_installed_is_refused_by_name(tmp_path: Path):
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    with pytest.raises(ConfigError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'.*http/protobuf.*4318"):
        Tracing.start(run_settings(tmp_path), "rollout", "rollout-0", environment=environment)


def test_the_sdk_can_be_turned_off(tmp_path: Path):
    tracing = Tracing.start(
        run_settings(tmp_path), "rollout", "rollout-0", environment={"OTEL_SDK_DISABLED": "true"}
    )
    with tracing.span("attempt") as span:
        assert traceparent_of(span) == ""
    assert not (tmp_path / "quiet").exists()
