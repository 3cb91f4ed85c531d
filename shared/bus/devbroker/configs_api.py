"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.

Invariant: only topic settings can be changed; the broker's own are described and read-only.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from kafka.protocol.admin import (
    AlterConfigsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
)

from shared.bus.devbroker.broker import Broker
from shared.bus.devbroker.caller import Caller
from shared.bus.devbroker.codes import Code, Refusal
from shared.bus.devbroker.topic_configs import ConfigType

_Described = DescribeConfigsResponse.DescribeConfigsResult
_Entry = _Described.DescribeConfigsResourceResult
_Synonym = _Entry.DescribeConfigsSynonym


class ResourceType(IntEnum):
    """What a configuration belongs to."""

    TOPIC = 2
    BROKER = 4


class ConfigSource(IntEnum):
    """Where a value comes from."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


class _Operation(IntEnum):
    """How IncrementalAlterConfigs changes one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_Row = tuple[str, str, ConfigSource, ConfigType]


async def describe_configs(broker: Broker, caller: Caller, request: Any) -> Any:
    results = []
    for asked in request.resources:
        code, message, rows = Code.NONE, None, list[_Row]()
        try:
            rows = list(_rows(broker, asked))
        except Refusal as refusal:
            code, message = refusal.code, str(refusal)
        results.append(
            _Described(
                error_code=code,
                error_message=message,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
                configs=[_entry(row, asked.resource_type, request.include_synonyms) for row in rows],
            )
        )
    return DescribeConfigsResponse(results=results)


def _rows(broker: Broker, asked: Any) -> Iterable[_Row]:
    wanted = None if asked.configuration_keys is None else set(asked.configuration_keys)
    for row in _all_rows(broker, asked):
        if wanted is None or row[0] in wanted:
            yield row


def _all_rows(broker: Broker, asked: Any) -> Iterable[_Row]:
    if asked.resource_type == ResourceType.TOPIC:
        topic, configs = broker.topics.get(asked.resource_name), broker.topics.configs
        for name, spec in sorted(configs.specs.items()):
            source = ConfigSource.TOPIC if name in topic.overrides else ConfigSource.DEFAULT
            yield name, configs.value(topic.overrides, name), source, spec.kind
    elif asked.resource_type == ResourceType.BROKER:
        if asked.resource_name not in ("", str(broker.settings.node_id)):
            raise Refusal(Code.INVALID_REQUEST, f"there is no broker {asked.resource_name}")
        for name, value in broker_configs(broker).items():
            yield name, value, ConfigSource.STATIC_BROKER, ConfigType.STRING
    else:
        raise Refusal(Code.INVALID_REQUEST, f"resource type {asked.resource_type} has no configuration here")


def broker_configs(broker: Broker) -> dict[str, str]:
    """The broker's settings under the names that Apache Kafka gives them."""
    settings = broker.settings
    return {
        "auto.create.topics.enable": "false",
        "broker.id": str(settings.node_id),
        "default.replication.factor": "1",
        "fetch.max.bytes": str(settings.fetch_max_bytes),
        "group.initial.rebalance.delay.ms": str(settings.group_initial_rebalance_delay_ms),
        "group.max.session.timeout.ms": str(settings.group_max_session_timeout_ms),
        "group.min.session.timeout.ms": str(settings.group_min_session_timeout_ms),
        "log.dirs": str(settings.data_dir),
        "log.segment.bytes": str(settings.segment_bytes),
        "message.max.bytes": str(settings.message_max_bytes),
        "num.partitions": str(settings.default_partitions),
        "offset.metadata.max.bytes": str(settings.offset_metadata_max_bytes),
        "producer.id.expiration.ms": str(settings.producer_id_expiration_ms),
        "socket.request.max.bytes": str(settings.request_max_bytes),
    }


def _entry(row: _Row, resource_type: int, include_synonyms: bool) -> Any:
    name, value, source, kind = row
    synonyms = [_Synonym(name=name, value=value, source=source)] if include_synonyms else []
    return _Entry(
        name=name,
        value=value,
        read_only=resource_type != ResourceType.TOPIC,
        config_source=source,
        is_sensitive=False,
        synonyms=synonyms,
        config_type=kind,
        documentation=None,
    )


async def alter_configs(broker: Broker, caller: Caller, request: Any) -> Any:
    """Replace every override of a topic (deprecated in Kafka, still sent by older clients)."""
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponse.AlterConfigsResourceResponse(
                **_change(broker, asked, request.validate_only, False)
            )
            for asked in request.resources
        ]
    )


async def incremental_alter_configs(broker: Broker, caller: Caller, request: Any) -> Any:
    """Set, delete, append to or subtract from single overrides of a topic."""
    row = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    return IncrementalAlterConfigsResponse(
        responses=[row(**_change(broker, asked, request.validate_only, True)) for asked in request.resources]
    )


def _change(broker: Broker, asked: Any, validate_only: bool, incremental: bool) -> dict[str, Any]:
    code, message = Code.NONE, None
    try:
        if asked.resource_type != ResourceType.TOPIC:
            raise Refusal(
                Code.INVALID_REQUEST, "only topic settings can be changed; restart the dev broker for others"
            )
        if incremental:
            overrides = _merged(broker, asked)
        else:
            overrides = {config.name: config.value for config in asked.configs}
        broker.topics.configure(asked.resource_name, overrides, validate_only)
    except Refusal as refusal:
        code, message = refusal.code, str(refusal)
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": asked.resource_type,
        "resource_name": asked.resource_name,
    }


def _merged(broker: Broker, asked: Any) -> dict[str, str | None]:
    topic, configs = broker.topics.get(asked.resource_name), broker.topics.configs
    overrides: dict[str, str | None] = dict(topic.overrides)
    for config in asked.configs:
        if config.config_operation == _Operation.SET:
            overrides[config.name] = config.value
        elif config.config_operation == _Operation.DELETE:
            overrides.pop(config.name, None)
        elif config.config_operation in (_Operation.APPEND, _Operation.SUBTRACT):
            if config.name not in configs.specs or configs.specs[config.name].kind is not ConfigType.LIST:
                raise Refusal(
                    Code.INVALID_CONFIG, f"{config.name} is not a list: it can only be set or deleted"
                )
            current = [part for part in configs.value(topic.overrides, config.name).split(",") if part]
            change = (config.value or "").split(",")
            kept = [part for part in current if part not in change]
            added = change if config.config_operation == _Operation.APPEND else []
            overrides[config.name] = ",".join(kept + added)
        else:
            raise Refusal(Code.INVALID_REQUEST, f"config operation {config.config_operation} is unknown")
    return overrides
