"""A Jaeger for tests: one that is running (JAEGER_QUERY_URL and OTEL_EXPORTER_OTLP_ENDPOINT), or one started here.

TEMPER_TOOLS_HOME names a folder whose `bin/run jaeger` starts Jaeger 2 in the foreground.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.telemetry.span_log import SpanRecord

NOT_RUN = "not run: Jaeger: set TEMPER_TOOLS_HOME, or JAEGER_QUERY_URL and OTEL_EXPORTER_OTLP_ENDPOINT"

CONFIG = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{otlp}"}}}}}}}}
exporters: {{jaeger_storage_exporter: {{trace_storage: memory}}}}
extensions:
  jaeger_storage: {{backends: {{memory: {{memory: {{max_traces: 100000}}}}}}}}
  jaeger_query:
    storage: {{traces: memory}}
    http: {{endpoint: "127.0.0.1:{query}"}}
    grpc: {{endpoint: "127.0.0.1:{grpc}"}}
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines: {{traces: {{receivers: [otlp], exporters: [jaeger_storage_exporter]}}}}
  telemetry: {{metrics: {{level: none}}}}
"""


@dataclass(frozen=True)
class Jaeger:
    otlp_url: str
    query_url: str

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of a trace; empty where it has not arrived."""
        with urllib.request.urlopen(f"{self.query_url}/api/traces/{trace_id}", timeout=10) as answer:
            data = json.load(answer)["data"] or []
        return [span for trace in data for span in trace["spans"]]

    def trace_when(self, trace_id: str, spans: int, deadline_s: float = 20.0) -> list[dict[str, Any]]:
        """As `trace`, after it has at least so many spans; whatever is there at the deadline."""
        until = time.monotonic() + deadline_s
        while True:
            try:
                found = self.trace(trace_id)
            except urllib.error.HTTPError as error:  # 404 until the first span is in
                if error.code != 404:
                    raise
                found = []
            if len(found) >= spans or time.monotonic() > until:
                return found
            time.sleep(0.1)


def differences(collector: Jaeger, spans: Iterable[SpanRecord]) -> list[str]:
    """What the collector has not, or otherwise, of a run's ended spans (its trace files); empty when all arrived."""
    traces: dict[str, dict[str, str]] = {}
    for span in spans:
        if span.end_ns is not None:
            traces.setdefault(span.trace_id, {})[span.span_id] = span.parent_span_id
    found = []
    for trace_id, wanted in traces.items():
        arrived = {s["spanID"]: parent_of(s) for s in collector.trace_when(trace_id, len(wanted))}
        found += [
            f"trace {trace_id}: span {span_id} has parent {arrived.get(span_id, '(not arrived)')!r}, not {parent!r}"
            for span_id, parent in wanted.items()
            if arrived.get(span_id) != parent
        ]
    return found


def parent_of(span: dict[str, Any]) -> str:
    """Span id of the parent; empty for a root."""
    parents = [
        r["spanID"]
        for r in span["references"]
        if r["refType"] == "CHILD_OF" and r["traceID"] == span["traceID"]
    ]
    return parents[0] if parents else ""


def available() -> bool:
    given = "JAEGER_QUERY_URL" in os.environ and "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ
    return given or "TEMPER_TOOLS_HOME" in os.environ


@contextmanager
def jaeger(folder: Path) -> Iterator[Jaeger]:
    if "JAEGER_QUERY_URL" in os.environ:
        yield Jaeger(os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"], os.environ["JAEGER_QUERY_URL"].rstrip("/"))
        return
    otlp, query, grpc = free_ports(3)
    config = folder / "jaeger.yaml"
    config.write_text(CONFIG.format(otlp=otlp, query=query, grpc=grpc))
    program = Path(os.environ["TEMPER_TOOLS_HOME"]) / "bin" / "run"
    log = folder / "jaeger.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [program, "jaeger", "--config", config], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        _await_port(query, process, log)
        yield Jaeger(f"http://127.0.0.1:{otlp}", f"http://127.0.0.1:{query}")
    finally:
        process.kill()  # it holds nothing on disk, and a graceful end takes it over ten seconds
        process.wait(10)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path, deadline_s: float = 60.0) -> None:
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        if process.poll() is not None:
            raise AssertionError(f"Jaeger ended with {process.returncode}: {log.read_text()[-2000:]}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"Jaeger does not listen after {deadline_s} s: {log.read_text()[-2000:]}")
