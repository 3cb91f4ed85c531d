"""`temper trace`: any id of a task finds it, the times are right, and an id that is wrong is answered with the nearest."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from shared.errors import ConfigError
from shared.telemetry.span_log import SpanLink, SpanRecord
from temper.cli.trace import trace
from temper.trace.find import UnknownIdError, find
from temper.trace.folder import trace_folder
from temper.trace.render import as_json, show
from temper.trace.spent import UNSEEN, spent
from temper.trace.tree import forest, walk

MS = 1_000_000


def span(
    name: str, parent: str, service: str, start: int, end: int | None, *, span_id: str = "", **facts: str
):
    return SpanRecord(
        trace_id="t" * 32, span_id=span_id or name, parent_span_id=parent, name=name.rstrip("12"), service=service,
        worker=f"{service}-0", start_ns=start * MS, end_ns=None if end is None else end * MS,
        attributes={f"temper.{key}": value for key, value in facts.items()},
    )  # fmt: skip


TASK = (
    span("schedule", "", "scheduler", 0, 1, group_id="0-rl-0000001", task="0-rl-0000001/1"),
    span("attempt", "schedule", "rollout", 11, 111, group_id="0-rl-0000001"),
    span("sample1", "attempt", "rollout", 21, 61, trajectory_id="aaaa1", policy_version="3"),
    span("sample2", "attempt", "rollout", 21, 111, trajectory_id="bbbb2"),
    span("verify1", "sample1", "verifier", 65, 75, trajectory_id="aaaa1", verdict="passed", reward="1.0"),
    span("verify2", "sample2", "verifier", 121, 125, trajectory_id="bbbb2", verdict="failed"),
    span("train1", "verify1", "learner", 225, 235, trajectory_id="aaaa1", fate="trained", step="7"),
    span("train2", "verify2", "learner", 225, None, trajectory_id="bbbb2"),
)


def test_durations_self_time_and_queues():
    nodes = {node.span.span_id: node for node in walk(forest(TASK))}
    assert nodes["attempt"].queued_ns == 10 * MS
    assert nodes["attempt"].duration_ns == 100 * MS
    assert nodes["attempt"].self_ns == 10 * MS
    assert nodes["sample1"].queued is None, "the same process: no topic between them"
    assert nodes["verify1"].queued_ns == 4 * MS
    assert nodes["train1"].queued_ns == 150 * MS
    assert nodes["train2"].duration_ns is None and nodes["train2"].self_ns is None


def test_where_time_went_adds_up():
    total = spent(forest(TASK))
    assert total.wall_ns == 235 * MS
    assert sum(total.shares.values()) == pytest.approx(total.wall_ns)
    assert total.shares["scheduler"] == 1 * MS
    assert total.shares["queue → rollout"] == 10 * MS
    assert max(total.shares, key=total.shares.__getitem__) == "queue → learner"


def test_a_time_that_nobody_saw_is_said():
    total = spent(forest([TASK[0], span("attempt", "elsewhere", "rollout", 5, 6)]))
    assert total.shares[UNSEEN] == 4 * MS


@pytest.mark.parametrize("wanted", ["t" * 32, "0-rl-0000001", "0-rl-0000001/1", "tttttttt"])
def test_ids_of_the_whole_task(wanted: str):
    assert find(TASK, wanted).traces == (TASK,)


@pytest.mark.parametrize("wanted", ["aaaa1", "aaaa"])
def test_a_trajectory_is_its_own_branch(wanted: str):
    (branch,) = find(TASK, wanted).traces
    assert [s.span_id for s in branch] == ["schedule", "attempt", "sample1", "verify1", "train1"]


def test_an_unknown_id_names_the_nearest():
    with pytest.raises(UnknownIdError, match=r"'0-rl-0000002' is in no trace.*0-rl-0000001") as error:
        find(TASK, "0-rl-0000002")
    assert error.value.exit_code == 1
    with pytest.raises(UnknownIdError, match=r"'0-rl' could be any of several ids; nearest: 0-rl-0000001"):
        find(TASK, "0-rl")
    with pytest.raises(UnknownIdError, match="no trace files"):
        find([], "x")


def test_both_forms_say_the_same():
    step = SpanRecord("s" * 32, "step", "", "step", "learner", "learner-0", 0, 1, {"temper.step": 7})
    linked = SpanRecord(
        **{**{f: getattr(TASK[6], f) for f in TASK[6].__slots__}, "links": (SpanLink("s" * 32, "step"),)}
    )
    spans = (*TASK[:6], linked, TASK[7])
    found, known = find(spans, "0-rl-0000001"), {s.span_id: s for s in (*spans, step)}
    out = io.StringIO()
    show(found, known, Console(file=out, width=200))
    text = out.getvalue()
    for said in (
        "never ended",
        "→ step 7",
        "passed  reward 1.0",
        "aaaa1  version 3",
        "queue → learner",
        "150.0 ms",
        "  ├ sample",
    ):
        assert said in text
    body = json.loads(json.dumps(as_json(found, known)))
    attempt = body["traces"][0]["tree"][0]["children"][0]
    assert attempt["queued_ms"] == 10.0 and [c["name"] for c in attempt["children"]] == ["sample", "sample"]
    assert body["spent"]["wall_ms"] == 235.0


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 12), st.integers(0, 50), st.integers(0, 50) | st.none())
    )
)
def test_any_spans_make_a_tree_of_all_of_them(rows: list[tuple[int, int, int, int | None]]):
    """Missing parents, circles, ends before starts: every span is shown once and the shares add up."""
    spans = {
        str(i): span("n", str(parent), f"s{i % 3}", start, end, span_id=str(i))
        for i, parent, start, end in rows
    }
    roots = forest(list(spans.values()))
    assert sorted(node.span.span_id for node in walk(roots)) == sorted(spans)
    total = spent(roots)
    assert sum(total.shares.values()) == pytest.approx(total.wall_ns)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "runs" / "one" / "traces"
    folder.mkdir(parents=True)
    line = {"kind": "end", "trace_id": "f" * 32, "span_id": "a", "parent_span_id": "", "name": "schedule",
            "service": "scheduler", "worker": "scheduler-0", "start_ns": 5, "end_ns": 9,
            "attributes": {"temper.group_id": "0-rl-0000003"}}  # fmt: skip
    (folder / "scheduler-0.jsonl").write_text(json.dumps(line) + "\n")
    app = Typer()
    app.command()(trace)
    monkeypatch.chdir(tmp_path)
    chosen = CliRunner().invoke(app, ["0-rl-0000003"])
    assert "schedule" in chosen.stdout and chosen.stderr.startswith("run: runs/one (the newest")
    named = CliRunner().invoke(app, ["0-rl-0000003", "--run", str(folder.parent), "--json"])
    assert json.loads(named.stdout)["traces"][0]["trace_id"] == "f" * 32 and not named.stderr
    assert isinstance(CliRunner().invoke(app, ["nothing"]).exception, UnknownIdError)


def test_a_folder_without_traces_is_refused_by_name(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such run folder"):
        trace_folder(tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"telemetry\.traces = 'none'"):
        trace_folder(tmp_path)
    with pytest.raises(ConfigError, match="--run"):
        trace_folder(None, tmp_path)
