"""`temper dead`: seeing what died, and sending it again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shared.bus.dead_book import find_letters
from shared.bus.delivery import Delivery
from shared.bus.records import Position, header
from shared.bus.topics import names
from shared.contracts import Headers
from shared.errors import ConfigError, ContractError
from shared.settings import Settings
from temper.cli import dead as cli
from tests.bus.parts import Seen, producing, read_raw, run, send_bytes, task, until, working
from tests.bus.test_failures import TRACEPARENT
from tests.bus.test_topics import write_config

Make = Callable[..., Settings]


def test_a_letter_is_listed_shown_and_replayed_once(make_settings: Make, tmp_path: Path) -> None:
    settings = make_settings(bus={"max_attempts": 2, "retry_delays_s": [0.1], "partitions": 1})
    topic = names(settings).tasks("single_turn", "normal")
    origin = kill_one(settings, topic)
    call = caller(write_config(settings, tmp_path))

    code, output = call("list")
    assert code == 0
    assert "ValueError" in output
    code, output = call("list", "--json")
    [letter] = json.loads(output)
    assert letter["origin"] == origin
    assert letter["error_message"] == "broken"
    assert letter["deliveries"] == "2"
    assert not letter["replayed"]
    code, output = call("show", "--id", origin)
    assert code == 0
    assert '"group_id":"0-rl-0000003"' in output
    assert TRACEPARENT in output

    code, output = call("replay", "--id", origin)
    assert code == 0, output
    assert f"{origin}: sent to {topic}/0/" in output
    original, again = read_raw(settings, topic)
    assert (again.key, again.value) == (original.key, original.value)
    assert set(original.headers) <= set(again.headers)
    assert header(again.headers, "replay_of") == letter["letter"]
    assert not header(again.headers, "error.type")
    assert not header(again.headers, "delivery")

    assert json.loads(call("list", "--json")[1])[0]["replayed"]
    code, output = call("replay", "--id", origin)
    assert code == 1
    assert "replayed before" in output
    assert call("replay", "--all")[1].strip() == "no dead letters to replay"

    seen = Seen()

    async def handle_it() -> None:
        async with producing(settings) as producer, working(settings, producer, seen):
            await until(lambda: seen.finished, "the replayed record")

    run(handle_it())
    assert seen.attempts[3] == [1], "a replay is a first delivery"
    assert seen.deliveries[0].headers.traceparent == TRACEPARENT


def test_only_what_was_asked_for(make_settings: Make, tmp_path: Path) -> None:
    settings = make_settings(bus={"max_attempts": 1, "partitions": 1})
    topic = names(settings).tasks("single_turn", "normal")
    kill_one(settings, topic)
    call = caller(write_config(settings, tmp_path))
    assert call("list", "--service", "learner")[1].strip() == "no dead letters"
    assert len(json.loads(call("list", "--service", "rollout", "--json")[1])) == 1
    assert call("show", "--id", "nothing/0/0")[0] == 1
    result = CliRunner().invoke(cli.app, ["replay", "--config", str(tmp_path / "run.toml")])
    assert isinstance(result.exception, ConfigError)
    with pytest.raises(ConfigError, match="no service 'rolout'"):
        find_letters(settings, "rolout")


def test_bytes_that_are_no_text_are_shown_and_a_loss_is_not_replayed(
    make_settings: Make, tmp_path: Path
) -> None:
    settings = make_settings(bus={"partitions": 1})
    dead = names(settings).dead("rollout")
    send_bytes(
        settings,
        dead,
        b"\xff\x00\xed\xa0\x80",
        [("error.type", b"ContractError"), ("error.message", b"\xfe"), ("origin", b"gone/0/0")],
    )
    send_bytes(settings, dead, b"{}", [("error.type", b"OffsetLost"), ("origin", b"t/0/5")])
    call = caller(write_config(settings, tmp_path))
    code, output = call("show", "--id", "gone/0/0")
    assert code == 0
    assert r"\xff" in output
    code, output = call("replay", "--id", "t/0/5")
    assert code == 1
    assert "reports a loss" in output


def test_places_are_read_and_written_alike() -> None:
    place = Position("temper.tasks.single_turn.high", 3, 17)
    assert Position.parse(str(place)) == place
    for text in ("", "a", "a/b/c", "a/1", "/1/2", "a/1/-2"):
        with pytest.raises(ContractError):
            Position.parse(text)


def kill_one(settings: Settings, topic: str) -> str:
    """A task whose handler always fails; returns its origin."""

    async def test() -> str:
        async def fail(index: int, delivery: Delivery[Any]) -> None:
            raise ValueError("broken")

        async with producing(settings) as producer:
            place = await producer.send(topic, task(settings, 3), Headers(traceparent=TRACEPARENT))
            async with working(settings, producer, Seen(fail)) as worker:
                await until(lambda: worker.stats().dead == 1, "the dead letter")
        return str(place)

    return run(test())


def caller(config: Path) -> Callable[..., tuple[int, str]]:
    def call(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli.app, [*words, "--config", str(config)])
        return result.exit_code, result.output

    return call
