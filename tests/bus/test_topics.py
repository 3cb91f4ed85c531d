"""The topic manifest and `temper topics`: what must be is what is made and checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shared.bus import admin
from shared.bus.subscriptions import group_name, retry_topics, task_subscriptions, trajectory_subscriptions
from shared.bus.topics import TopicNames, delay_name, manifest, names
from shared.errors import BusError
from shared.settings import Settings
from temper.cli import topics as cli
from tests.bus.test_failures import limit_topic

Make = Callable[..., Settings]


def test_plan_apply_check(make_settings: Make) -> None:
    settings = make_settings(topics=False)
    assert {state.action for state in admin.plan(settings)} == {"create"}
    assert all(state.missing for state in admin.check(settings))
    admin.apply(settings)
    assert admin.check(settings) == ()
    assert {state.action for state in admin.apply(settings)} == {"none"}, "applying twice changes nothing"


def test_every_topic_is_as_the_manifest_says(make_settings: Make) -> None:
    settings = make_settings(bus={"partitions": 3})
    by_name = {state.name: state for state in admin.plan(settings)}
    topics = names(settings)
    assert by_name[topics.tasks("single_turn", "high")].partitions == 3
    assert by_name[topics.rewards].partitions == 3
    for one in (topics.policies, topics.steps, topics.workers, topics.control, topics.dead("learner")):
        assert by_name[one].partitions == 1
    for compacted in (topics.policies, topics.workers, topics.control):
        assert by_name[compacted].config["cleanup.policy"] == "compact"
    retry = by_name[topics.retries("verifier", 0.2)]
    assert retry.config["message.timestamp.type"] == "LogAppendTime"


def test_what_services_use_is_in_the_manifest(make_settings: Make) -> None:
    settings = make_settings(
        topics=False,
        workloads=[
            {"name": "single_turn"},
            {"name": "agentic", "priorities": ["high", "low"], "priority_weights": [5, 1]},
        ],
    )
    declared = {spec.name for spec in manifest(settings)}
    used = {item.topic for item in (*task_subscriptions(settings), *trajectory_subscriptions(settings))}
    used |= set(retry_topics(settings, "rollout")) | set(retry_topics(settings, "verifier"))
    assert used <= declared
    agentic = task_subscriptions(settings, ["agentic"])
    assert [item.weight for item in agentic] == [5, 1]
    assert group_name(settings, "rollout").endswith(".rollout.agentic+single_turn")
    assert group_name(settings, "rollout", ["agentic"]).endswith(".rollout.agentic")


def test_names() -> None:
    assert TopicNames("temper").retries("rollout", 10.0) == "temper.retries.rollout.10s"
    assert [delay_name(delay) for delay in (0.25, 1.0, 90.0, 0.001)] == ["250ms", "1s", "90s", "1ms"]


def test_another_partition_count_is_an_error_with_the_mend(make_settings: Make) -> None:
    settings = make_settings(bus={"partitions": 2})
    other = settings.model_copy(update={"bus": settings.bus.model_copy(update={"partitions": 4})})
    with pytest.raises(
        BusError, match="has 2 partitions, the manifest wants 4: set bus.partitions"
    ) as caught:
        admin.apply(other)
    assert caught.value.exit_code == 3


def test_configuration_that_drifted_is_found_and_mended(make_settings: Make) -> None:
    settings = make_settings()
    topic = names(settings).rewards
    limit_topic(settings, topic, 5000)
    [drifted] = admin.check(settings)
    assert drifted.name == topic
    assert drifted.differs["max.message.bytes"][0] == "5000"
    admin.apply(settings)
    assert admin.check(settings) == ()


def test_the_command(make_settings: Make, tmp_path: Path) -> None:
    config = write_config(make_settings(topics=False), tmp_path)
    runner = CliRunner()

    def call(*words: str) -> tuple[int, str]:
        result = runner.invoke(cli.app, [*words, "--config", str(config)])
        return result.exit_code, result.output

    code, output = call("check", "--json")
    assert code == 1
    assert {entry["action"] for entry in json.loads(output)} == {"create"}
    code, output = call("plan")
    assert code == 0
    assert "create" in output
    code, output = call("apply")
    assert code == 0
    assert "created" in output
    code, output = call("check")
    assert (code, output.strip()) == (0, "all topics are as they must be")


def write_config(settings: Settings, folder: Path) -> Path:
    """The settings as a TOML file, as a person would write them."""
    lines = []
    document = settings.model_dump(mode="json", include={"run", "bus", "model", "storage", "telemetry"})
    for section, values in document.items():
        lines.append(f"[{section}]")
        lines.extend(f"{key} = {json.dumps(value)}" for key, value in values.items())
    for section in ("domains", "stages"):
        for item in settings.model_dump(mode="json")[section]:
            plain = {key: value for key, value in item.items() if not isinstance(value, dict)}
            lines.append(f"[[{section}]]")
            lines.extend(f"{key} = {json.dumps(value)}" for key, value in plain.items())
    path = folder / "run.toml"
    path.write_text("\n".join(lines))
    return path
