"""The four services started one by one, without `temper up`: the run's folder says what the run is all the same."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.settings import Settings, load_settings
from temper.models.tiny import make_tiny_model
from temper.up.resolved import FILE_NAME, claim, resolve, to_toml
from tests.end_to_end.local_run import TEMPER, temper

SERVICES = ("learner", "rollout", "verifier", "scheduler")


def small(make_settings: Callable[..., Settings], tmp_path: Path) -> Settings:
    return make_settings(
        run={"name": "alone"},
        model={"path": str(make_tiny_model(tmp_path / "tiny"))},
        domains=[{"name": "arithmetic", "max_tokens": 4, "difficulty": {"digits": 1, "operations": ["+"]}}],
        stages=[{"kind": "rl", "steps": 2, "groups_per_step": 2, "group_size": 2}],
        evaluation={"instances_per_domain": 2},
        learner={"threads": 1},
        rollout={"threads": 1},
    )


@pytest.mark.slow
def test_audit_and_report_of_services_started_one_by_one(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = small(make_settings, tmp_path)
    config = tmp_path / "alone.toml"
    config.write_text(to_toml(settings))
    early = temper("report", str(settings.run_folder))
    assert early.returncode == 2 and "no such run folder" in early.stderr
    running = [
        subprocess.Popen(
            [*TEMPER, service, "--config", str(config)], env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        for service in SERVICES
    ]
    try:
        assert [process.wait(200) for process in running] == [0, 0, 0, 0]
    finally:
        for process in running:
            process.kill()
            process.wait()
    folder = settings.run_folder
    assert load_settings(folder / FILE_NAME, {}) == resolve(settings)
    audit = temper("audit", str(folder))
    assert audit.returncode == 0, audit.stdout + audit.stderr
    report = temper("report", str(folder), "--json")
    assert report.returncode == 0, report.stderr
    summary = json.loads(report.stdout)
    assert summary == json.loads((folder / "summary.json").read_text())
    assert (summary["run_id"], summary["steps"]) == ("alone", 2) and summary["wall_seconds"] > 0
    assert [e["name"] for e in summary["evaluations"]] == ["start", "0-rl-end"]
    changed = settings.model_copy(update={"stages": (settings.stages[0].model_copy(update={"steps": 3}),)})
    config.write_text(to_toml(changed))
    refused = temper("verifier", "--config", str(config))
    assert refused.returncode == 2 and "stages.0.steps: 2 → 3" in refused.stderr


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Settings:
    return make_settings(run={"name": "claimed"})


def test_of_many_that_come_at_once_one_writes_the_file(settings: Settings) -> None:
    steps = [
        settings.model_copy(update={"stages": (settings.stages[0].model_copy(update={"steps": n}),)})
        for n in range(1, 9)
    ]

    def outcome(one: Settings) -> int | None:
        try:
            claim(one)
        except ConfigError:
            return None
        return one.stages[0].steps

    with ThreadPoolExecutor(8) as pool:
        winners = [n for n in pool.map(outcome, steps) if n is not None]
    written = load_settings(settings.run_folder / FILE_NAME, {})
    assert winners == [written.stages[0].steps]
    assert [path.name for path in settings.run_folder.iterdir()] == [FILE_NAME], "no partial file is left"


def test_a_device_may_change_and_what_is_learnt_may_not(settings: Settings) -> None:
    claim(settings)
    claim(settings.model_copy(update={"learner": settings.learner.model_copy(update={"device": "cuda"})}))
    with pytest.raises(ConfigError, match=r"learner.weight_decay: 0.0 → 0.5"):
        claim(
            settings.model_copy(update={"learner": settings.learner.model_copy(update={"weight_decay": 0.5})})
        )


def test_a_mistake_in_a_difficulty_is_not_written(settings: Settings) -> None:
    domain = settings.domains[0].model_copy(update={"difficulty": {"digitz": 2}})
    with pytest.raises(ConfigError, match="did you mean 'digits'"):
        claim(settings.model_copy(update={"domains": (domain,)}))
    assert not settings.run_folder.exists()
    foreign = settings.domains[0].model_copy(update={"name": "installed.elsewhere:Domain"})
    claim(settings.model_copy(update={"domains": (foreign,)}))


def test_a_folder_that_cannot_be_written_is_said_and_is_no_end(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.run_folder.parent.mkdir(parents=True)
    settings.run_folder.write_text("a file where the folder should be")
    claim(settings)
    assert "run.toml not written" in capsys.readouterr().out


def test_a_service_goes_on_from_the_file_that_temper_up_wrote(settings: Settings) -> None:
    settings.run_folder.mkdir(parents=True)
    (settings.run_folder / FILE_NAME).write_text(to_toml(resolve(settings)))
    before = (settings.run_folder / FILE_NAME).read_bytes()
    claim(load_settings(settings.run_folder / FILE_NAME, {"TEMPER_BUS__BOOTSTRAP_SERVERS": "127.0.0.1:1"}))
    assert (settings.run_folder / FILE_NAME).read_bytes() == before
