"""What `temper up` decides without a process: restarts, resumed configurations, progress."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigError
from shared.settings import Settings, load_settings, parse_settings
from temper.up.progress import Progress
from temper.up.resolved import FILE_NAME, refuse_changes, resolve, to_toml
from temper.up.restart import GiveUp, RestartAfter, RestartPolicy
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


def test_bad_configuration_is_not_restarted() -> None:
    assert isinstance(RestartPolicy().on_exit(2, 100.0), GiveUp)


@given(st.lists(st.tuples(st.sampled_from([-9, 1, 3, 5]), st.floats(0, 29.9)), min_size=6, max_size=6))
def test_a_process_that_keeps_dying_ends_the_run(exits: list[tuple[int, float]]) -> None:
    policy = RestartPolicy()
    decisions = [policy.on_exit(code, lived) for code, lived in exits]
    pauses = [d.seconds for d in decisions if isinstance(d, RestartAfter)]
    assert len(pauses) == 5 and isinstance(decisions[-1], GiveUp)
    assert pauses == sorted(pauses) and pauses[0] == 0.5 and pauses[-1] <= 10


@given(st.lists(st.floats(30, 1e6), min_size=20, max_size=40))
def test_a_process_that_lives_is_always_restarted(lives: list[float]) -> None:
    policy = RestartPolicy()
    assert all(policy.on_exit(-9, lived) == RestartAfter(0.5) for lived in lives)


def test_progress_tells_news_once() -> None:
    progress = Progress(settings_of())
    news = [progress.observe(m) for m in EXAMPLES + EXAMPLES]
    lines = [line for line in news if line]
    assert len(lines) == 2
    assert lines[0].startswith("step   5/5  rl 2/4") and "arithmetic 0.50 (4/8)" in lines[0]
    assert lines[1] == "held-out start: arithmetic 3/64 = 5%"
