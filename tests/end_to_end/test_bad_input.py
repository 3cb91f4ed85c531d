"""Bad input by the command line: one clear line, a sensible exit code, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaProducer

from shared.bus.topics import TopicNames
from shared.contracts import Control, encode, schema_header
from shared.settings import Settings
from temper.up.resolved import to_toml
from temper.up.run import locked
from tests.contracts.examples import EXAMPLES
from tests.end_to_end.local_run import TEMPER, temper
from tests.model_folders import small_folder

ROOT = Path(__file__).parents[2]

RUN = """
[run]
name = "bad"
folder = "{folder}"
[model]
path = "{folder}/no-model"
[bus]
connect_timeout_s = 1.5
[[domains]]
name = "arithmetic"
[[stages]]
kind = "rl"
steps = 1
"""


def config(tmp_path: Path, change: Callable[[str], str] = lambda text: text) -> str:
    path = tmp_path / "bad.toml"
    path.write_text(change(RUN.format(folder=tmp_path)))
    return str(path)


def one_line(result: subprocess.CompletedProcess[str], code: int) -> str:
    assert result.returncode == code, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("temper: ")]
    assert len(lines) == 1 and "Traceback" not in result.stderr, result.stderr
    return lines[0]


@pytest.mark.parametrize("command", [["up"], ["scheduler", "--config"], ["topics", "plan", "--config"]])
def test_an_unknown_key_names_the_nearest(command: list[str], tmp_path: Path) -> None:
    result = temper(*command, config(tmp_path, lambda text: text.replace("steps", "stpes")))
    assert "unknown key 'stages.0.stpes'; did you mean 'steps'?" in one_line(result, 2)


def test_a_value_of_another_type_is_named(tmp_path: Path) -> None:
    result = temper("up", config(tmp_path, lambda text: text.replace("steps = 1", "steps = 1.5")))
    assert "stages.0.steps" in one_line(result, 2)


def test_an_unknown_domain_is_named(tmp_path: Path) -> None:
    result = temper("domains", "show", "arithmetik")
    assert "arithmetic" in one_line(result, 2)


def test_a_missing_model_says_how_to_make_one(tmp_path: Path) -> None:
    line = one_line(temper("up", config(tmp_path)), 3)
    assert "no-model" in line and "temper models prepare" in line


def test_a_damaged_model_is_named_before_anything_starts(tmp_path: Path) -> None:
    model = small_folder(tmp_path / "no-model")
    (model / "tokenizer.json").write_text("{")
    assert "tokenizer.json is not valid JSON" in one_line(temper("up", config(tmp_path)), 3)
    assert not (tmp_path / "bad" / "run.toml").exists()


def test_an_address_that_is_none_is_named(tmp_path: Path) -> None:
    text = '[bus]\nbootstrap_servers = "garbage"'
    for command in (["up"], ["learner", "--config"], ["topics", "check", "--config"]):
        result = temper(*command, config(tmp_path, lambda toml: toml.replace("[bus]", text)))
        assert "'garbage' is no address of a broker: write host:port" in one_line(result, 2)


def test_a_service_without_a_broker_says_so(tmp_path: Path) -> None:
    assert "bus.bootstrap_servers is empty" in one_line(temper("rollout", "--config", config(tmp_path)), 2)


HELD: list[socket.socket] = []


def closed_port() -> int:
    """Bound and never listened on, to the end of the tests: a port that is free again may be anybody's, or connect to
    itself."""
    probe = socket.socket()
    probe.bind(("127.0.0.1", 0))
    HELD.append(probe)
    return int(probe.getsockname()[1])


@pytest.mark.parametrize("service", ["scheduler", "rollout", "verifier", "learner"])
def test_an_unreachable_broker_ends_with_code_3(service: str, tmp_path: Path) -> None:
    port = closed_port()
    text = f'[bus]\nbootstrap_servers = "127.0.0.1:{port}"'
    result = temper(service, "--config", config(tmp_path, lambda toml: toml.replace("[bus]", text)))
    assert str(port) in one_line(result, 3)


def write(settings: Settings, tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(to_toml(settings))
    return str(path)


def test_a_wrong_partition_count_names_topic_and_counts(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = make_settings()
    wrong = settings.model_copy(update={"bus": settings.bus.model_copy(update={"partitions": 1})})
    path = write(wrong, tmp_path)
    for command in (["verifier", "--config", path], ["topics", "check", "--config", path]):
        line = one_line(temper(*command), 3)
        assert TopicNames(settings.bus.namespace).rewards.rsplit(".", 1)[0] in line and "2" in line


def with_a_model(settings: Settings, tmp_path: Path) -> Settings:
    """As far as `temper up` looks before it starts anything."""
    model = small_folder(tmp_path / "model")
    return settings.model_copy(update={"model": settings.model.model_copy(update={"path": str(model)})})


def test_a_new_folder_beside_an_old_run_of_that_name_is_refused(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = with_a_model(make_settings(), tmp_path)
    producer = KafkaProducer(bootstrap_servers=settings.bus.bootstrap_servers)
    old = Control(run_id=settings.run.name, kind="end", reason="done")
    headers = [("schema", schema_header(old).encode()), ("run_id", old.run_id.encode())]
    producer.send(
        TopicNames(settings.bus.namespace).control, value=encode(old), key=b"k", headers=headers
    ).get(10)
    producer.close()
    for _ in range(2):  # the second time too: the first must not have left a folder that looks resumable
        line = one_line(temper("up", write(settings, tmp_path)), 2)
        assert settings.run.name in line and "choose another run.name" in line


def test_a_run_folder_in_use_is_refused(make_settings: Callable[..., Settings], tmp_path: Path) -> None:
    settings = with_a_model(make_settings(), tmp_path)
    with locked(settings.run_folder):
        line = one_line(temper("up", write(settings, tmp_path)), 2)
    assert "is in use by another `temper up`" in line


def test_unreadable_messages_become_dead_letters_and_the_service_goes_on(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = make_settings()
    path = write(settings, tmp_path)
    topic = TopicNames(settings.bus.namespace).trajectories("single_turn", "normal")
    trajectory = EXAMPLES[1]
    run_id = ("run_id", settings.run.name.encode())
    producer = KafkaProducer(bootstrap_servers=settings.bus.bootstrap_servers)
    for schema, body in (
        ("temper.trajectory/1", b"\xff\x00not json"),
        ("temper.trajectory/9", encode(trajectory)),
        ("temper.nothing/1", b"{}"),
    ):
        producer.send(topic, key=b"k", value=body, headers=[("schema", schema.encode()), run_id]).get(10)
    producer.close()
    process = subprocess.Popen([*TEMPER, "verifier", "--config", path], env={**os.environ})
    try:
        letters: list[dict[str, object]] = []
        deadline = time.monotonic() + 60
        while len(letters) < 3 and time.monotonic() < deadline:
            result = temper("dead", "list", "--config", path, "--json")
            assert result.returncode == 0, result.stderr
            letters = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
            if not letters and result.stdout.startswith("["):
                letters = json.loads(result.stdout)
        assert len(letters) == 3, result.stdout
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()


def test_a_mistake_in_a_difficulty_does_not_use_up_the_name(tmp_path: Path) -> None:
    text = 'name = "arithmetic"\ndifficulty = { digitz = 2 }'
    result = temper("up", config(tmp_path, lambda toml: toml.replace('name = "arithmetic"', text)))
    assert "digitz" in one_line(result, 2)
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("Incomplete", "does not define difficulty_model"),
        ("AnswersANumber", "oracle returned a value of type int"),
        ("DividesByZero", "faulty.py:"),
    ],
)
def test_a_domain_that_does_not_work_is_named_before_anything_starts(
    place: str, words: str, tmp_path: Path
) -> None:
    name = f'name = "tests.verification.faulty:{place}"'
    path = config(tmp_path, lambda toml: toml.replace('name = "arithmetic"', name))
    result = temper("up", path, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert words in one_line(result, 2)
    assert not (tmp_path / "bad").exists()


def test_a_run_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("a file where the run's folder should be")
    assert "cannot be written" in one_line(temper("up", config(tmp_path)), 5)


def test_an_infinite_learning_rate_is_refused(tmp_path: Path) -> None:
    result = temper("up", config(tmp_path, lambda toml: toml + "learning_rate = inf"))
    assert "stages.0.learning_rate" in one_line(result, 2)
