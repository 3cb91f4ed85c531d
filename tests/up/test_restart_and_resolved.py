"""What `temper up` decides without a process: restarts, resumed configurations, progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contracts import Heartbeat
from shared.errors import ConfigError, StalledError
from shared.settings import Settings, load_settings, parse_settings
from temper.up.processes import last_words
from temper.up.progress import Progress, at_work
from temper.up.resolved import FILE_NAME, guard_differences, refuse_changes, resolve, to_toml
from temper.up.restart import Exit, GiveUp, RestartAfter, RestartPolicy
from tests.contracts.examples import EXAMPLES


def settings_of(**changes: object) -> Settings:
    document: dict[str, object] = {
        "run": {"name": "r"},
        "model": {"path": "m", "chat_template": 'a "quoted"\n{{ x }} ✓ \\'},
        "domains": [{"name": "arithmetic", "difficulty": {"digits": 2, "operations": ["+", "-"]}}],
        "stages": [{"kind": "sft", "steps": 1}, {"kind": "rl", "steps": 4, "objective": {"preset": "dapo"}}],
    }
    return parse_settings(document | changes)


def test_resolved_settings_read_back_the_same(tmp_path: Path) -> None:
    settings = resolve(settings_of())
    (tmp_path / FILE_NAME).write_text(to_toml(settings))
    assert load_settings(tmp_path / FILE_NAME, {}) == settings
    assert Path(settings.run.folder).is_absolute()


def test_a_resumed_run_may_not_learn_something_else() -> None:
    before = resolve(settings_of())
    refuse_changes(before, resolve(settings_of(rollout={"processes": 2})))
    changed = resolve(settings_of(stages=[{"kind": "sft", "steps": 2}]))
    with pytest.raises(ConfigError, match=r"stages\.0\.steps: 1 → 2.*give run\.name a new value"):
        refuse_changes(before, changed)


def test_a_paused_run_may_go_on_with_other_bounds_and_says_so() -> None:
    bound = {"metric": "kl", "limit": 0.1}
    before = resolve(settings_of(guard={"bounds": [bound]}))
    now = resolve(settings_of(guard={"bounds": [{**bound, "limit": 0.5}], "window": 8}))
    refuse_changes(before, now)
    assert guard_differences(before, now) == ["guard.bounds.0.limit: 0.1 → 0.5", "guard.window: 16 → 8"]
    assert guard_differences(now, now) == []


def test_a_run_that_lies_in_its_folder_alone_may_be_removed_to_begin_anew() -> None:
    def refused(**now: object) -> str:
        with pytest.raises(ConfigError) as caught:
            refuse_changes(
                resolve(settings_of()), resolve(settings_of(stages=[{"kind": "sft", "steps": 2}], **now))
            )
        return str(caught.value)

    assert refused().endswith(f"where nothing of it is worth keeping, remove {Path('runs/r').absolute()}")
    assert "remove" not in refused(bus={"bootstrap_servers": "broker:9092"}), "its topics would stay"
    assert "remove" not in refused(storage={"uri": "s3://bucket/objects"}), "its checkpoints would stay"


def test_bad_configuration_is_not_restarted() -> None:
    assert isinstance(RestartPolicy().on_exit(Exit(2, 100.0, worked=True)), GiveUp)


def test_a_stalled_run_is_not_left_to_stall_again() -> None:
    """It has waited ten minutes by its own setting; three times of that was what an operator waited."""
    assert isinstance(RestartPolicy().on_exit(Exit(StalledError.exit_code, 700.0, worked=True)), GiveUp)


def test_a_full_disk_is_tried_once_more() -> None:
    policy = RestartPolicy()
    first = policy.on_exit(Exit(5, 100.0, True, "objects/00000003/weights cannot be written: No space left"))
    again = policy.on_exit(
        Exit(5, 100.0, True, "objects/00000003/state.json cannot be written: No space left")
    )
    assert first == RestartAfter(0.5) and again == GiveUp("exit code 5 twice in a row")
    assert policy.on_exit(Exit(5, 1.0, run_moves=9)) != again, "steps in between: it was mended"


@given(st.lists(st.tuples(st.sampled_from([-9, -11, 1, 3]), st.floats(0, 599)), min_size=6, max_size=6))
def test_a_process_that_never_gets_to_work_ends_the_run(exits: list[tuple[int, float]]) -> None:
    """However long each of its starts takes, and whatever each one says."""
    policy = RestartPolicy()
    decisions = [
        policy.on_exit(Exit(code, lived, words="abcdef"[number]))
        for number, (code, lived) in enumerate(exits)
    ]
    pauses = [d.seconds for d in decisions if isinstance(d, RestartAfter)]
    assert len(pauses) == 5 and isinstance(decisions[-1], GiveUp)
    assert pauses == sorted(pauses) and pauses[0] == 0.5 and pauses[-1] <= 10


@given(st.integers(1, 1000), st.floats(0, 1e6), st.booleans())
def test_the_same_end_again_and_again_without_a_step_ends_the_run(
    port: int, lived: float, worked: bool
) -> None:
    policy = RestartPolicy()
    words = [f"model.path 'm' cannot be loaded after {0.5 * n} s (process {port + n})" for n in range(3)]
    decisions = [policy.on_exit(Exit(3, lived, worked, said)) for said in words]
    assert [type(d) for d in decisions] == [RestartAfter, RestartAfter, GiveUp]


@given(st.lists(st.sampled_from([(-9, ""), (3, "a"), (1, "b")]), min_size=20, max_size=40))
def test_a_process_that_worked_is_restarted_while_the_run_moves(exits: list[tuple[int, str]]) -> None:
    policy = RestartPolicy()
    for number, (code, words) in enumerate(exits):
        assert policy.on_exit(Exit(code, 1.0, True, words, run_moves=number)) == RestartAfter(0.5)


@given(st.lists(st.floats(0, 1e6), min_size=20, max_size=40))
def test_kills_from_outside_never_end_a_run_whose_process_works(lives: list[float]) -> None:
    policy = RestartPolicy()
    assert all(policy.on_exit(Exit(-9, lived, True)) == RestartAfter(0.5) for lived in lives)


@pytest.mark.parametrize(
    ("state", "processed", "works"),
    [
        ("starting", 0, False),
        ("waiting", 0, False),
        ("failed", 5, False),
        ("idle", 0, True),
        ("waiting", 1, True),
        ("working", 0, False),
        ("working", 2, True),
    ],
)
def test_which_heartbeats_mean_that_a_start_succeeded(state: Any, processed: int, works: bool) -> None:
    beat = Heartbeat(run_id="r", worker_id="w", service="rollout", state=state, processed=processed)
    assert at_work(beat) is works


def test_the_last_words_are_the_command_s_own_line_of_the_last_start(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("temper: an older start\n")
    since = log.stat().st_size
    assert last_words(tmp_path / "none.log") == "no log" and last_words(log, since) == "no output"
    log.write_text(log.read_text() + "starting\nlearner.failed\n")
    assert last_words(log, since) == "learner.failed"
    log.write_text(log.read_text() + "temper: no such device\nException ignored in: <x>\n")
    assert last_words(log, since) == "no such device"


def test_progress_tells_news_once() -> None:
    progress = Progress(settings_of())
    news = [progress.observe(m) for m in EXAMPLES + EXAMPLES]
    lines = [line for line in news if line]
    assert len(lines) == 2
    assert lines[0].startswith("step   5/5  rl 2/4") and "arithmetic 0.50 (4/8)" in lines[0]
    assert lines[1] == "held-out start: arithmetic 3/64 = 5%"
