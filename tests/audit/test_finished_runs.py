"""A finished run without its broker: dead letters, report and audit all find their way to its records."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner, Result

from shared.bus.producer import TypedProducer
from shared.bus.topics import TopicNames
from shared.contracts import Control, Step, Trajectory
from shared.errors import BusError, ConfigError, DataError
from shared.storage import ObjectStore
from temper.audit.log import TopicLog
from temper.audit.place import connected, run_settings
from temper.cli import dead
from temper.cli.audit import audit
from temper.cli.report import report
from tests.audit.test_command import folder  # noqa: F401 - a fixture
from tests.contracts.examples import EXAMPLES
from tests.end_to_end.test_bad_input import closed_port

APP = Typer()
APP.command()(audit)
APP.command()(report)
APP.add_typer(dead.app, name="dead")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(APP, [str(argument) for argument in arguments])


@pytest.fixture
def finished(folder: Path) -> Path:  # noqa: F811
    return folder


def listed(config: Path) -> list[dict[str, object]]:
    result = run("dead", "list", "--config", config, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    return list(json.loads(result.stdout))


def test_dead_letters_of_a_finished_run_need_no_broker(finished: Path) -> None:
    config = finished / "run.toml"
    (letter,) = listed(config)
    assert letter["error_type"] == "ContractError" and letter["replayed"] is False
    shown = run("dead", "show", "--config", config, "--id", letter["letter"])
    assert shown.exit_code == 0 and "no schema" in shown.stdout
    replayed = run("dead", "replay", "--config", config, "--all")
    assert replayed.exit_code == 0 and "sent to " in replayed.stdout, replayed.output
    assert [again["replayed"] for again in listed(config)] == [True]
    assert not (finished / "broker.address").exists()


def test_an_address_that_nobody_answers_is_passed_over_for_the_run_s_own_broker(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPER_BUS__BOOTSTRAP_SERVERS", f"127.0.0.1:{closed_port()}")
    monkeypatch.setenv("TEMPER_BUS__CONNECT_TIMEOUT_S", "1")
    assert len(listed(finished / "run.toml")) == 1
    shutil.rmtree(finished / "broker")
    result = run("dead", "list", "--config", finished / "run.toml")
    assert isinstance(result.exception, BusError) and result.exception.exit_code == 3


def test_a_config_whose_run_has_no_broker_says_so(finished: Path) -> None:
    shutil.rmtree(finished / "broker")
    result = run("dead", "list", "--config", finished / "run.toml")
    assert isinstance(result.exception, ConfigError)
    assert "TEMPER_BUS__BOOTSTRAP_SERVERS" in str(result.exception)


def test_a_report_is_made_from_the_topics(finished: Path) -> None:
    assert not (finished / "summary.json").exists()
    first = run("report", finished, "--json")
    assert first.exit_code == 0, first.exception
    summary = json.loads(first.stdout)
    assert (summary["run_id"], summary["steps"], summary["slots"]["trained"]) == ("small", 1, 2)
    assert json.loads((finished / "summary.json").read_text()) == summary
    assert run("report", finished, "--json").stdout == first.stdout


def test_a_run_that_has_not_ended_is_reported_and_not_summarized(finished: Path) -> None:
    async def begin() -> None:
        with connected(run_settings(finished)) as settings:
            other = settings.model_copy(update={"run": settings.run.model_copy(update={"name": "going"})})
            names = TopicNames(settings.bus.namespace)
            producer = TypedProducer(other, "made")
            step = Step(run_id="going", step=1, stage="rl", stage_index=0, stage_step=1, policy_version=1)
            await producer.send(
                names.steps, step.model_copy(update={"created_ms": 9000, "seconds": {"total": 4.0}})
            )
            await producer.send(names.control, Control(run_id="other", kind="end", reason="not this one"))
            await producer.close()

    asyncio.run(begin())
    going = finished.rename(finished.parent / "going")
    text = (going / "run.toml").read_text()
    (going / "run.toml").write_text(text.replace('name = "small"', 'name = "going"'))
    result = run("report", going, "--json")
    assert result.exit_code == 0 and "run going has not ended" in result.stderr, result.exception
    assert json.loads(result.stdout)["wall_seconds"] == 4.0
    assert not (going / "summary.json").exists(), "it would count as complete"
    nothing = going.rename(finished.parent / "nothing")
    (nothing / "run.toml").write_text(text.replace('name = "small"', 'name = "nothing"'))
    result = run("report", nothing)
    assert isinstance(result.exception, ConfigError)
    assert "run 'nothing' has made no step and no evaluation yet" in str(result.exception)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "it is not JSON"), ("{}", "key 'run_id' is missing"), ("[]", "the file")],
)
def test_a_damaged_summary_is_named_in_our_words(finished: Path, text: str, words: str) -> None:
    (finished / "summary.json").write_text(text)
    result = run("report", finished)
    said = str(result.exception)
    assert isinstance(result.exception, DataError) and words in said, said
    assert result.exception.exit_code == 4
    assert "Summary" not in said and "\n" not in said and "remove it" in said


def test_a_copy_is_proved_by_what_was_copied(finished: Path, tmp_path: Path) -> None:
    """A body in the object store is found where the copy is, though its ticket names the place it was written to."""

    async def send_a_large_body() -> None:
        with connected(run_settings(finished)) as settings:
            small = settings.model_copy(
                update={"bus": settings.bus.model_copy(update={"claim_check_bytes": 1024})}
            )
            producer = TypedProducer(small, "made", ObjectStore(settings.storage_uri))
            trajectory = next(example for example in EXAMPLES if isinstance(example, Trajectory))
            large = trajectory.model_copy(update={"final_answer": "x" * 5000})
            topic = TopicNames(settings.bus.namespace).trajectories("single_turn", "normal")
            await producer.send(topic, large)
            await producer.close()

    asyncio.run(send_a_large_body())
    copy = Path(shutil.copytree(finished, tmp_path / "archive" / "small"))
    shutil.rmtree(finished)
    with connected(run_settings(copy)) as settings:
        topic = TopicNames(settings.bus.namespace).trajectories("single_turn", "normal")
        with TopicLog(settings, [topic], ObjectStore(settings.storage_uri)) as log:
            answers = [getattr(log.message(record), "final_answer", "") for record in log.records()]
    assert "x" * 5000 in answers
    assert "no such object" not in run("audit", copy, "--json").stdout
