"""The configuration of topics: what may be set, what it defaults to, and what the log does with it.

Invariant: a stored override was valid when it was set; a setting that this broker doesn't act on is still kept and
described, so that a topic made for Apache Kafka can be made here.
Source: https://kafka.apache.org/documentation/#topicconfigs
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from shared.bus.devbroker.codes import Code, Refusal
from shared.bus.devbroker.settings import DevBrokerSettings

DAY_MS = 86_400_000
MIN_SEGMENT_BYTES = 1024 * 1024  # of a topic, as in Kafka; the broker's default may be less, for tests


class ConfigType(IntEnum):
    """The type tags of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True)
class ConfigSpec:
    """One setting: its default, its type tag, and a check that raises ValueError."""

    default: str
    kind: ConfigType
    check: Callable[[str], object]


def _integer(kind: ConfigType, default: int, low: int, high: int = 2**63 - 1) -> ConfigSpec:
    def check(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")
        return value

    return ConfigSpec(str(default), kind, check)


def _fraction(default: str) -> ConfigSpec:
    def check(text: str) -> float:
        value = float(text)
        if not 0 <= value <= 1:
            raise ValueError("must be between 0 and 1")
        return value

    return ConfigSpec(default, ConfigType.DOUBLE, check)


def _choice(default: str, *allowed: str) -> ConfigSpec:
    def check(text: str) -> None:
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")

    return ConfigSpec(default, ConfigType.STRING, check)


def _flag(default: bool) -> ConfigSpec:
    def check(text: str) -> None:
        if text.lower() not in ("true", "false"):
            raise ValueError("must be true or false")

    return ConfigSpec(str(default).lower(), ConfigType.BOOLEAN, check)


def _cleanup() -> ConfigSpec:
    def check(text: str) -> None:
        parts = {part.strip() for part in text.split(",") if part}
        if not parts <= {"compact", "delete"}:
            raise ValueError("must be delete, compact, both or nothing")

    return ConfigSpec("delete", ConfigType.LIST, check)


def topic_config_specs(settings: DevBrokerSettings) -> dict[str, ConfigSpec]:
    """Every topic setting by name; some defaults are the broker's own settings."""
    integer, long, top = ConfigType.INT, ConfigType.LONG, 2**31 - 1
    return {
        "cleanup.policy": _cleanup(),
        "compression.type": _choice("producer", "producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "compression.gzip.level": _integer(integer, -1, -1, 9),
        "compression.lz4.level": _integer(integer, 9, 1, 17),
        "compression.zstd.level": _integer(integer, 3, -131072, 22),
        "delete.retention.ms": _integer(long, DAY_MS, 0),
        "file.delete.delay.ms": _integer(long, 60_000, 0),
        "flush.messages": _integer(long, 2**63 - 1, 1),
        "flush.ms": _integer(long, 2**63 - 1, 0),
        "follower.replication.throttled.replicas": ConfigSpec("", ConfigType.LIST, str),
        "index.interval.bytes": _integer(integer, 4096, 0, top),
        "leader.replication.throttled.replicas": ConfigSpec("", ConfigType.LIST, str),
        "local.retention.bytes": _integer(long, -2, -2),
        "local.retention.ms": _integer(long, -2, -2),
        "max.compaction.lag.ms": _integer(long, 2**63 - 1, 1),
        "max.message.bytes": _integer(integer, settings.message_max_bytes, 0, top),
        "message.timestamp.after.max.ms": _integer(long, 3_600_000, 0),
        "message.timestamp.before.max.ms": _integer(long, 2**63 - 1, 0),
        "message.timestamp.type": _choice("CreateTime", "CreateTime", "LogAppendTime"),
        "min.cleanable.dirty.ratio": _fraction("0.5"),
        "min.compaction.lag.ms": _integer(long, 0, 0),
        "min.insync.replicas": _integer(integer, 1, 1, top),
        "preallocate": _flag(False),
        "remote.log.copy.disable": _flag(False),
        "remote.log.delete.on.disable": _flag(False),
        "remote.storage.enable": _flag(False),
        "retention.bytes": _integer(long, -1, -1),
        "retention.ms": _integer(long, 7 * DAY_MS, -1),
        "segment.bytes": _integer(integer, settings.segment_bytes, MIN_SEGMENT_BYTES, top),
        "segment.index.bytes": _integer(integer, 10_485_760, 4, top),
        "segment.jitter.ms": _integer(long, 0, 0),
        "segment.ms": _integer(long, 7 * DAY_MS, 1),
        "unclean.leader.election.enable": _flag(False),
    }


@dataclass(frozen=True)
class LogPolicy:
    """What a partition's log acts on. Sizes are bytes, times milliseconds; -1 means without limit."""

    max_message_bytes: int
    segment_bytes: int
    segment_ms: int
    retention_ms: int
    retention_bytes: int
    delete: bool
    compact: bool
    delete_retention_ms: int
    min_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int


class TopicConfigs:
    """Checks overrides and works out what they mean."""

    def __init__(self, settings: DevBrokerSettings) -> None:
        self.specs = topic_config_specs(settings)

    def check(self, overrides: Mapping[str, str | None]) -> dict[str, str]:
        """The overrides as they are stored. Raises Refusal(INVALID_CONFIG)."""
        checked: dict[str, str] = {}
        for name, value in overrides.items():
            spec = self.specs.get(name)
            if spec is None:
                raise Refusal(Code.INVALID_CONFIG, f"Unknown topic config name: {name}")
            if value is None:
                raise Refusal(Code.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
            try:
                spec.check(value)
            except ValueError as fault:
                message = f"Invalid value {value} for configuration {name}: {fault}"
                raise Refusal(Code.INVALID_CONFIG, message) from fault
            checked[name] = value
        return checked

    def value(self, overrides: Mapping[str, str], name: str) -> str:
        return overrides.get(name, self.specs[name].default)

    def policy(self, overrides: Mapping[str, str]) -> LogPolicy:
        """What the log does under these overrides."""

        def number(name: str) -> int:
            return int(self.value(overrides, name))

        cleanup = {part.strip() for part in self.value(overrides, "cleanup.policy").split(",")}
        return LogPolicy(
            max_message_bytes=number("max.message.bytes"),
            segment_bytes=number("segment.bytes"),
            segment_ms=number("segment.ms"),
            retention_ms=number("retention.ms"),
            retention_bytes=number("retention.bytes"),
            delete="delete" in cleanup,
            compact="compact" in cleanup,
            delete_retention_ms=number("delete.retention.ms"),
            min_compaction_lag_ms=number("min.compaction.lag.ms"),
            min_cleanable_dirty_ratio=float(self.value(overrides, "min.cleanable.dirty.ratio")),
            log_append_time=self.value(overrides, "message.timestamp.type") == "LogAppendTime",
            timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
            timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        )
