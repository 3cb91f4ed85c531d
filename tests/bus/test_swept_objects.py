"""`temper storage`: what no record names any more goes, whatever else lies beside it stays."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from shared.bus import claims
from shared.bus.connect import client_options
from shared.bus.deadletters import DeadLetters
from shared.bus.topics import TopicNames, names
from shared.contracts import Continuation, SampledTurn, Task, ToolAnswer, ToolTurn, WorkspaceRef
from shared.settings import Settings
from shared.storage import ObjectStore
from temper.cli import storage as cli
from tests.bus.parts import producing, read_raw, reward, run, task
from tests.bus.test_topics import write_config

Make = Callable[..., Settings]


@pytest.fixture
def settings(make_settings: Make) -> Settings:
    return make_settings(bus={"claim_check_bytes": 2048, "partitions": 1})


def handed_back(settings: Settings, store: ObjectStore, index: int, size: int) -> tuple[Any, str]:
    """A task that goes on with a workspace, and the key of that."""
    packed = f"the workspace of {index}".encode()
    digest = hashlib.sha256(packed).hexdigest()
    key = f"workspaces/{settings.run.name}/{digest}"
    ref = WorkspaceRef(uri=store.put_bytes(key, packed).uri, sha256=digest, size_bytes=len(packed))
    ids = np.arange(3, dtype=np.int32)
    turn = SampledTurn(token_ids=ids, logprobs=-ids.astype(np.float32), versions=ids, stop_reason="stop")
    told = ToolTurn(answers=(ToolAnswer(tool="bash", text="done"),), calls=(), read=1)
    rest = Continuation(hops=1, turns=(turn,), context_sha256="00", tool_turns=(told,), workspace=ref)
    return task(settings, index, size=size).model_copy(update={"continuation": rest}), key


async def sent(settings: Settings, store: ObjectStore) -> list[str]:
    """Keys of what is named: bodies in a topic and in dead letters, workspaces in small and in parked tasks."""
    topic = names(settings).tasks("single_turn", "normal")
    small, first = handed_back(settings, store, 1, 20)
    large, second = handed_back(settings, store, 2, 50_000)
    async with producing(settings) as producer:
        for message in (small, large, task(settings, 3, size=60_000)):
            await producer.send(topic, message)
        await producer.send(names(settings).rewards, reward(settings, 4, size=70_000))
        (record, *_) = [record for record in read_raw(settings, topic) if not record.value]
        await DeadLetters(producer, settings, "rollout").send(record, ValueError("no luck"))
    return [first, second, *store.list(f"bodies/{settings.run.name}/")]


def left_alone(store: ObjectStore, settings: Settings) -> list[str]:
    """Of other runs, of the learner, and what somebody else put beside them."""
    foreign = [
        store.put_bytes(key, b"x").uri
        for key in (
            claims.key_of("another-run", "f" * 64),
            claims.key_of(f"{settings.run.name}0", "f" * 64),
            claims.key_of(settings.run.name, "readme.txt"),
            claims.key_of(f"{settings.run.name}/copied", "f" * 64),
        )
    ]
    weights = store.put_bytes(f"policies/{settings.run.name}/0/model.safetensors", b"x").uri
    return [uri.removeprefix(f"{store.uri}/") for uri in (*foreign, weights)]


def aged(store: ObjectStore, keys: list[str]) -> None:
    for key in keys:
        path = store.local_path(key)
        assert path is not None
        os.utime(path, times=(time.time() - 100_000,) * 2)


def asked(settings: Settings, folder: Path, *words: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli.app, [*words, "--config", str(write_config(settings, folder)), "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    return {row["kind"]: row for row in json.loads(done.stdout)}


def test_what_no_record_names_goes_and_all_else_stays(settings: Settings, tmp_path: Path) -> None:
    store = ObjectStore(settings.storage_uri)
    named = run(sent(settings, store))
    assert len(named) == 5
    free = [claims.key_of(settings.run.name, "a" * 64), f"workspaces/{settings.run.name}/{'b' * 64}"]
    for key in free:
        store.put_bytes(key, b"nobody names it")
    others = left_alone(store, settings)
    aged(store, [*named, *free, *others])
    young = claims.key_of(settings.run.name, "c" * 64)
    store.put_bytes(young, b"its record is on its way")
    seen = asked(settings, tmp_path, "list")
    assert (seen["bodies"]["may_go"], seen["workspaces"]["may_go"]) == (1, 1)
    assert (seen["bodies"]["objects"], seen["workspaces"]["objects"]) == (5, 3)
    assert sorted(store.list()) == sorted([*named, *free, *others, young])
    gone = asked(settings, tmp_path, "sweep")
    assert (gone["bodies"]["removed"], gone["workspaces"]["removed"]) == (1, 1)
    assert sorted(store.list()) == sorted([*named, *others, young])


def test_what_retention_took_the_records_of_goes_but_dead_letters_hold_it(
    settings: Settings, tmp_path: Path
) -> None:
    from kafka import KafkaAdminClient, TopicPartition

    store = ObjectStore(settings.storage_uri)
    named = run(sent(settings, store))
    aged(store, named)
    topic = names(settings).tasks("single_turn", "normal")
    admin = KafkaAdminClient(**client_options(settings.bus, "test"))
    admin.delete_records({TopicPartition(topic, 0): 3})
    admin.close()
    gone = asked(settings, tmp_path, "sweep")
    # One body and its workspace are a dead letter's, which may be sent again; the reward's body stands.
    assert (gone["bodies"]["removed"], gone["workspaces"]["removed"]) == (1, 1)
    assert len(read_raw(settings, TopicNames(settings.bus.namespace).dead("rollout"))) == 1
    assert len(store.list(f"bodies/{settings.run.name}/")) == 2
    assert named[1] in store.list("workspaces/")


def test_topics_that_the_settings_name_no_more_and_heartbeats_are_read_too(
    make_settings: Make, tmp_path: Path
) -> None:
    """A workload and a retry delay were taken out of the run's file; their records wait there all the same."""
    workloads = [{"name": "single_turn"}, {"name": "agentic"}]
    bus = {"claim_check_bytes": 2048, "partitions": 1}
    settings = make_settings(bus={**bus, "retry_delays_s": [3.0, 7.0]}, workloads=workloads)
    store, topics = ObjectStore(settings.storage_uri), names(settings)

    async def send() -> None:
        async with producing(settings) as producer:
            places = [topics.tasks("agentic", "normal"), topics.retries("verifier", 7.0), topics.workers]
            for number, topic in enumerate(places):
                await producer.send(topic, reward(settings, number, size=50_000))

    run(send())
    before = store.list(f"bodies/{settings.run.name}/")
    aged(store, before)
    later = settings.model_copy(
        update={
            "bus": settings.bus.model_copy(update={"retry_delays_s": (3.0,)}),
            "workloads": settings.workloads[:1],
        }
    )
    assert asked(later, tmp_path, "sweep")["bodies"]["removed"] == 0
    assert store.list(f"bodies/{settings.run.name}/") == before and len(before) == 3


def test_a_task_of_a_version_that_is_not_known_here_keeps_its_workspace(
    settings: Settings, tmp_path: Path
) -> None:
    """A newer process may take it. A ticket that is damaged costs nobody the sweep."""
    store, topic = ObjectStore(settings.storage_uri), names(settings).tasks("single_turn", "normal")
    small, first = handed_back(settings, store, 1, 20)
    large, second = handed_back(settings, store, 2, 50_000)
    bodies = [message.model_dump_json().encode() for message in (small, large)]

    async def send() -> None:
        async with producing(settings) as producer:
            headers = [("schema", f"{Task.SCHEMA}/999".encode()), ("run_id", settings.run.name.encode())]
            await producer.send_raw(topic, b"key", bodies[0], headers)
            ticket = claims.park(store, settings.run.name, bodies[1]).encode()
            await producer.send_raw(topic, b"key", b"", [*headers, ("claim", ticket)])
            await producer.send_raw(topic, b"key", b"", [*headers, ("claim", b"\xff{")])

    run(send())
    free = claims.key_of(settings.run.name, "a" * 64)
    store.put_bytes(free, b"nobody names it")
    kept = [first, second, *store.list(f"bodies/{settings.run.name}/")]
    aged(store, kept)
    assert asked(settings, tmp_path, "sweep")["bodies"]["removed"] == 1
    assert sorted(store.list()) == sorted(set(kept) - {free})


def test_another_broker_says_nothing_of_the_run_so_nothing_goes(settings: Settings, tmp_path: Path) -> None:
    store = ObjectStore(settings.storage_uri)
    key = claims.key_of(settings.run.name, "a" * 64)
    store.put_bytes(key, b"named elsewhere")
    aged(store, [key])
    words = ["sweep", "--config", str(write_config(settings, tmp_path))]
    done = CliRunner().invoke(cli.app, words)
    assert "has no record of the run" in str(done.exception) and store.list() == [key]


@pytest.mark.parametrize("hours", ["0", "nan", "-3"])
def test_what_was_just_written_is_never_swept(settings: Settings, tmp_path: Path, hours: str) -> None:
    words = ["sweep", "--config", str(write_config(settings, tmp_path)), "--older-than", hours]
    done = CliRunner().invoke(cli.app, words)
    assert done.exception is not None and "at least 1 hour" in str(done.exception)


def test_a_body_that_is_parked_again_is_young_again(settings: Settings) -> None:
    store = ObjectStore(settings.storage_uri)
    claims.park(store, settings.run.name, b"body")
    (stored,) = store.listed(f"bodies/{settings.run.name}")
    aged(store, [stored.key])
    claims.park(store, settings.run.name, b"body")
    (again,) = store.listed(f"bodies/{settings.run.name}")
    assert again.key == stored.key and abs(again.modified_s - time.time()) < 3600
