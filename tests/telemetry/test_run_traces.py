"""The traces of a whole run: in its files, in a collector, and through `temper trace`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.telemetry.span_log import read_spans
from temper.models.tiny import make_tiny_model
from temper.trace.find import find
from temper.trace.tree import forest, walk
from tests.end_to_end.local_run import LocalRun, temper
from tests.telemetry.jaeger import NOT_RUN, available, differences, jaeger

pytestmark = pytest.mark.slow


def test_every_trace_of_a_run_arrives_connected(tmp_path: Path):
    if not available():
        pytest.skip(NOT_RUN)
    model = make_tiny_model(tmp_path / "tiny")
    with jaeger(tmp_path) as collector, LocalRun(tmp_path, model, sft_steps=2, rl_steps=2) as run:
        assert run.start(OTEL_EXPORTER_OTLP_ENDPOINT=collector.otlp_url).wait() == 0
        spans = read_spans(run.folder / "traces").spans
        assert {span.name for span in spans} >= {"schedule", "attempt", "sample", "verify", "train", "step"}
        assert {span.service for span in spans} == {"scheduler", "rollout", "verifier", "learner"}
        assert differences(collector, spans) == []
        (trace,) = find(spans, "1-rl-0000000").traces
        (root,) = forest(trace)
        names = [node.span.name for node in walk([root])]
        assert (names.count("sample"), names.count("verify"), names.count("train")) == (4, 4, 4)
        shown = temper("trace", "1-rl-0000000", "--run", str(run.folder), "--json")
        assert json.loads(shown.stdout)["traces"][0]["trace_id"] == root.span.trace_id
