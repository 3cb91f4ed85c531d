"""`temper up` shows what the guard did and says, and `temper resume` lets a paused run go on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from services.scheduler.service import SchedulerState
from shared.bus.control import ControlWatcher
from shared.bus.producer import TypedProducer
from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts import Control, DomainReward, Headers, Step
from shared.settings import Settings
from temper.report.summary import build_summary
from temper.up.progress import Progress
from temper.up.resolved import to_toml

WORDS = "guard, step 3: paused: kl 0.9 is above 0.5 (t1, t2)"


def pause(run_id: str, kind: str = "pause", step: int = 3) -> Control:
    reason = WORDS if kind == "pause" else "resumed by hand"
    return Control(run_id=run_id, kind=kind, reason=reason, body={"step": step})  # type: ignore[arg-type]


def made(number: int, action: str = "continue", notes: tuple[str, ...] = ()) -> Step:
    return Step(
        run_id="r", step=number, stage="rl", stage_index=0, stage_step=number, policy_version=number,
        action=action, notes=notes, rewards={"arithmetic": DomainReward(mean=0.5, passed=1, count=2)},
    )  # fmt: skip


def test_a_pause_is_news_once_and_names_the_command(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings()
    progress = Progress(settings)
    news = progress.observe(pause("r"))
    assert news == f"{WORDS}; look at it, then `temper resume {settings.run_folder}`"
    assert progress.observe(pause("r")) is None and progress.paused == WORDS
    assert progress.observe(pause("r", "resume")) == "the learner goes on" and not progress.paused


def test_a_step_s_notes_are_printed_below_it_and_counted_in_the_report(
    make_settings: Callable[..., Settings],
) -> None:
    step = made(1, "roll_back", ("guard, step 1: rolled back", "the verifier of domain 'x' is unstable"))
    lines = (Progress(make_settings()).observe(step) or "").splitlines()
    assert lines[0].startswith("step   1/") and [line.strip() for line in lines[1:]] == list(step.notes)
    (stage,) = build_summary("r", [step, made(2)], (), wall_seconds=1.0).stages
    assert stage.guard == {"roll_back": 1} and stage.notes == step.notes and stage.steps == 2


def test_no_clock_runs_for_a_scheduler_whose_learner_waits_for_a_person(
    make_settings: Callable[..., Settings],
) -> None:
    state = SchedulerState(make_settings())
    state.policy_version = 0
    run = state.settings.run.name
    assert state.observe(pause(run), Headers()) and "`temper resume`" in state.waits_for()
    state.observe(pause(run, "resume"), Headers())
    assert state.paused == "" and state.waits_for() == ""


def temper(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "temper", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_the_command_resumes_the_step_that_is_paused(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings()
    folder: Path = settings.run_folder
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(to_toml(settings))
    idle = temper("resume", str(folder))
    assert idle.returncode == 2 and "is not paused" in idle.stderr

    async def say() -> None:
        producer = TypedProducer(settings, "learner-0")
        await producer.send(TopicNames(settings.bus.namespace).control, pause(settings.run.name))
        await producer.close()

    asyncio.run(say())
    said = temper("resume", str(folder))
    assert said.returncode == 0 and "goes on after step 3" in said.stdout and WORDS in said.stdout

    async def heard() -> int:
        watcher = ControlWatcher(settings, "learner")
        reader = LogReader(settings, "learner", [TopicNames(settings.bus.namespace).control])
        async for delivery in reader.to_end():
            watcher.observe(delivery.message)
        await reader.close()
        return watcher.resumed

    assert asyncio.run(heard()) == 3
    assert temper("resume", str(folder)).returncode == 2
