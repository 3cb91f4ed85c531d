"""Topics as they are against topics as the manifest wants them.

Invariant: `apply` only adds what is missing and mends configuration; it never deletes a topic, and never changes a
partition count (that would move keys to other partitions): a wrong one is an error that names the mend.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from shared.bus.connect import bus_error, client_options
from shared.bus.topics import TopicSpec, manifest
from shared.errors import BusError
from shared.settings import BusSettings, Settings

Action = Literal["create", "configure", "none"]


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic of the manifest beside what the broker has."""

    spec: TopicSpec
    partitions: int
    """0 where the topic does not exist."""
    config: dict[str, str]
    """The broker's values of the keys that the manifest sets."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def missing(self) -> bool:
        return self.partitions == 0

    @property
    def differs(self) -> dict[str, tuple[str, str]]:
        """Configuration that is not as it must be: key → (is, must be)."""
        if self.missing:
            return {}
        return {
            key: (self.config.get(key, ""), wanted)
            for key, wanted in self.spec.config.items()
            if not _same(self.config.get(key, ""), wanted)
        }

    @property
    def action(self) -> Action:
        if self.missing:
            return "create"
        return "configure" if self.differs else "none"


def plan(settings: Settings) -> tuple[TopicState, ...]:
    """What `apply` would do, topic by topic.

    Raises `BusError` when the broker cannot be asked, or when a topic exists with another partition count.
    """
    with admin_client(settings.bus) as client:
        return _plan(client, settings)


def apply(settings: Settings) -> tuple[TopicState, ...]:
    """Create missing topics and set differing configuration; returns what was done. Safe to run at any time."""
    with admin_client(settings.bus) as client:
        states = _plan(client, settings)
        _create(client, [state.spec for state in states if state.missing])
        _configure(client, [state for state in states if state.differs])
    return states


def check(settings: Settings) -> tuple[TopicState, ...]:
    """The topics that are not as the manifest wants them; empty when all is well. Raises as `plan`."""
    return tuple(state for state in plan(settings) if state.action != "none")


@contextlib.contextmanager
def admin_client(bus: BusSettings) -> Iterator[Any]:
    """A `KafkaAdminClient`; what the library raises inside comes out as `BusError`."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    try:
        client = KafkaAdminClient(**client_options(bus, "temper-admin"), bootstrap_timeout_ms=10_000)
    except (KafkaError, OSError) as error:
        raise bus_error(
            f"the broker at {bus.bootstrap_servers} cannot be asked about topics", error
        ) from error
    try:
        yield client
    except KafkaError as error:
        raise bus_error(f"the broker at {bus.bootstrap_servers} refused a topic request", error) from error
    finally:
        client.close()


def _plan(client: Any, settings: Settings) -> tuple[TopicState, ...]:
    specs = manifest(settings)
    present = set(client.list_topics())
    described = client.describe_topics([spec.name for spec in specs if spec.name in present])
    partitions = {topic["name"]: len(topic["partitions"]) for topic in described if not topic["error_code"]}
    configs = _configs(client, [spec for spec in specs if spec.name in partitions])
    states = tuple(
        TopicState(spec, partitions.get(spec.name, 0), configs.get(spec.name, {})) for spec in specs
    )
    for state in states:
        if not state.missing and state.partitions != state.spec.partitions:
            raise BusError(
                f"topic {state.name} has {state.partitions} partitions, the manifest wants {state.spec.partitions}: "
                f"set bus.partitions to what is there, use another bus.namespace, or delete the topic"
            )
    return states


def _configs(client: Any, specs: list[TopicSpec]) -> dict[str, dict[str, str]]:
    from kafka.admin import ConfigResource, ConfigResourceType

    resources = [
        ConfigResource(ConfigResourceType.TOPIC, spec.name, configs=dict.fromkeys(spec.config, ""))
        for spec in specs
        if spec.config
    ]
    if not resources:
        return {}
    found = client.describe_configs(resources, config_filter="all").get("topic", {})
    return {
        topic: {key: str(entry["value"]) for key, entry in entries.items()}
        for topic, entries in found.items()
    }


def _create(client: Any, specs: list[TopicSpec]) -> None:
    from kafka.errors import TopicAlreadyExistsError

    if not specs:
        return
    wanted = {
        spec.name: {
            "num_partitions": spec.partitions,
            "replication_factor": spec.replication_factor,
            "configs": dict(spec.config),
        }
        for spec in specs
    }
    # Two services that start together both create: the second finds the topics there, which is as wanted.
    result = client.create_topics(wanted, timeout_ms=30_000, raise_errors=False)
    for topic in result["topics"]:
        code = topic["error_code"]
        if code not in (0, TopicAlreadyExistsError.errno):
            from kafka.errors import for_code

            raise BusError(
                f"topic {topic['name']} cannot be created: {for_code(code).__name__}: "
                f"{topic.get('error_message') or 'no reason given'}; correct bus.replication_factor or the broker"
            )
    client.wait_for_topics([spec.name for spec in specs], timeout_ms=30_000)


def _configure(client: Any, states: list[TopicState]) -> None:
    from kafka.admin import ConfigResource, ConfigResourceType

    if not states:
        return
    resources = [
        ConfigResource(
            ConfigResourceType.TOPIC,
            state.name,
            configs={key: wanted for key, (_, wanted) in state.differs.items()},
        )
        for state in states
    ]
    results = client.alter_configs(resources, raise_on_unknown=False).get("topic", {})
    for topic, outcome in results.items():
        if outcome != "OK":
            raise BusError(f"topic {topic} cannot be configured: {outcome}")


def _same(found: str, wanted: str) -> bool:
    """Brokers answer numbers in their own notation (`0.1`, `0.10`)."""
    if found == wanted:
        return True
    try:
        return float(found) == float(wanted)
    except ValueError:
        return False
