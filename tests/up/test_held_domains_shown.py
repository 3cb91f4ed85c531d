"""`temper up` tells of domains that are held back, once each, and `temper domains` holds and lifts them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from shared.contracts import Control
from shared.settings import Settings
from temper.up.progress import Progress
from temper.up.resolved import to_toml


def control(run_id: str, kind: str, reason: str = "two verdicts") -> Control:
    return Control(run_id=run_id, kind=kind, domain="arithmetic", reason=reason)  # type: ignore[arg-type]


def test_a_hold_is_news_once_and_a_lift_ends_it(make_settings: Callable[..., Settings]) -> None:
    progress = Progress(make_settings())
    assert progress.observe(control("r", "lift")) is None
    lift = f"(`temper domains lift {progress.settings.run_folder} arithmetic`)"
    assert progress.observe(control("r", "hold")) == f"domain arithmetic is held back: two verdicts {lift}"
    assert progress.observe(control("r", "hold")) is None, "another verifier says the same"
    assert progress.held == {"arithmetic": "two verdicts"}
    assert (
        progress.observe(control("r", "hold", "faults")) == f"domain arithmetic is held back: faults {lift}"
    )
    assert progress.observe(control("r", "lift")) == "domain arithmetic is lifted"
    assert not progress.held and progress.ended is None


def temper(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "temper", "domains", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_holds_shows_and_lifts(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings()
    folder: Path = settings.run_folder
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(to_toml(settings))
    run = str(folder)
    assert temper("held", run).stdout == "no domain is held back\n"
    unknown = temper("hold", run, "arithmetics")
    assert unknown.returncode == 2 and "did you mean 'arithmetic'" in unknown.stderr
    assert temper("hold", run, "arithmetic", "--reason", "looks odd").returncode == 0
    assert temper("held", run).stdout == "arithmetic: looks odd\n"
    assert json.loads(temper("held", run, "--json").stdout) == {
        "arithmetic": {"reason": "looks odd", "evidence": {}}
    }
    assert temper("lift", run, "arithmetic").stdout == "arithmetic is lifted\n"
    again = temper("lift", run, "arithmetic")
    assert again.returncode == 2 and "is not held back" in again.stderr and "held: none" in again.stderr
