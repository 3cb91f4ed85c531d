"""The catalogue of topics: names, ids, numbers of partitions and configuration, kept in one file.

Invariant: the file is replaced atomically before a change is acknowledged; a folder of logs that the file doesn't name
belongs to a deleted topic and is removed at start.
"""

import json
import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shared.bus.devbroker.codes import Code, Refusal
from shared.bus.devbroker.files import replace_file
from shared.bus.devbroker.log import PartitionLog
from shared.bus.devbroker.settings import DevBrokerError, DevBrokerSettings
from shared.bus.devbroker.topic_configs import LogPolicy, TopicConfigs

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")
_MAX_PARTITIONS = 10_000


@dataclass(frozen=True)
class Topic:
    """A topic as clients see it. `overrides` are the settings that differ from the defaults."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder_name(self) -> str:
        return f"{self.name[:200]}~{self.topic_id.hex}"


def check_topic_name(name: str) -> None:
    """Raises Refusal(INVALID_TOPIC) for a name that Kafka wouldn't take."""
    if name in (".", "..") or not _LEGAL_NAME.match(name):
        raise Refusal(
            Code.INVALID_TOPIC,
            f"the topic name {name[:300]!r} is illegal: 1 to 249 of letters, digits, '.', '_' and '-'",
        )


class TopicCatalogue:
    """Every topic and the logs of its partitions."""

    def __init__(self, settings: DevBrokerSettings) -> None:
        self.configs = TopicConfigs(settings)
        self._file = settings.data_dir / "topics.json"
        self._logs_folder = settings.data_dir / "logs"
        self._topics: dict[str, Topic] = {}
        self._names_by_id: dict[uuid.UUID, str] = {}
        self._logs: dict[tuple[str, int], PartitionLog] = {}

    def open(self, was_clean: bool, now_ms: int) -> None:
        """Read the file, open every log, remove what deleted topics left behind."""
        self._logs_folder.mkdir(parents=True, exist_ok=True)
        for topic in self._stored():
            self._adopt(topic)
            for partition in range(topic.partitions):
                self._open_log(topic, partition, was_clean, now_ms)
        known = {topic.folder_name for topic in self._topics.values()}
        for folder in self._logs_folder.iterdir():
            if folder.name not in known:
                shutil.rmtree(folder)

    def close(self) -> None:
        for log in self._logs.values():
            log.close()

    def all(self) -> list[Topic]:
        return [self._topics[name] for name in sorted(self._topics)]

    def all_logs(self) -> list[PartitionLog]:
        return list(self._logs.values())

    # -- looking up -----------------------------------------------------------------------------------------

    def get(self, name: str) -> Topic:
        """Raises Refusal with INVALID_TOPIC or UNKNOWN_TOPIC_OR_PARTITION; topics are never made by being asked for."""
        topic = self._topics.get(name)
        if topic is None:
            check_topic_name(name)
            raise Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}; create it first")
        return topic

    def by_id(self, topic_id: uuid.UUID | None) -> Topic:
        """Raises Refusal(UNKNOWN_TOPIC_ID)."""
        name = None if topic_id is None else self._names_by_id.get(topic_id)
        if name is None:
            raise Refusal(Code.UNKNOWN_TOPIC_ID, f"there is no topic with id {topic_id}")
        return self._topics[name]

    def find(self, name: str | None, topic_id: uuid.UUID | None) -> Topic:
        """By name when the request has one (older versions), else by id."""
        return self.get(name) if name else self.by_id(topic_id)

    def log(self, name: str, partition: int) -> PartitionLog:
        """Raises Refusal(UNKNOWN_TOPIC_OR_PARTITION)."""
        log = self._logs.get((name, partition))
        if log is None:
            topic = self.get(name)
            raise Refusal(
                Code.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {name!r} has {topic.partitions} partitions, not {partition}",
            )
        return log

    # -- changing -------------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str | None],
        now_ms: int,
        validate_only: bool = False,
    ) -> Topic:
        """Raises Refusal with TOPIC_ALREADY_EXISTS, INVALID_TOPIC, INVALID_PARTITIONS or INVALID_CONFIG."""
        check_topic_name(name)
        if name in self._topics:
            raise Refusal(Code.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if not 1 <= partitions <= _MAX_PARTITIONS:
            raise Refusal(Code.INVALID_PARTITIONS, f"{partitions} partitions: ask for 1 to {_MAX_PARTITIONS}")
        topic = Topic(name, uuid.uuid4(), partitions, self.configs.check(configs))
        if not validate_only:
            for partition in range(partitions):
                self._open_log(topic, partition, True, now_ms)
            self._adopt(topic)
            self._store()
        return topic

    def delete(self, name: str) -> None:
        """Raises Refusal(UNKNOWN_TOPIC_OR_PARTITION). Readers that wait on its logs are woken."""
        topic = self.get(name)
        del self._topics[name]
        del self._names_by_id[topic.topic_id]
        self._store()
        for partition in range(topic.partitions):
            log = self._logs.pop((name, partition))
            log.close()
            log.deleted = True
            for wake in tuple(log.listeners):
                wake()
        folder = self._logs_folder / topic.folder_name
        doomed = folder.rename(
            folder.with_name(folder.name + ".deleted")
        )  # so that no compaction writes into it
        shutil.rmtree(doomed)

    def grow(self, name: str, partitions: int, now_ms: int, validate_only: bool = False) -> None:
        """Raises Refusal with UNKNOWN_TOPIC_OR_PARTITION or INVALID_PARTITIONS."""
        topic = self.get(name)
        if not topic.partitions < partitions <= _MAX_PARTITIONS:
            raise Refusal(
                Code.INVALID_PARTITIONS,
                f"The topic {name} currently has {topic.partitions} partition(s); {partitions} would not be an increase.",
            )
        if validate_only:
            return
        for partition in range(topic.partitions, partitions):
            self._open_log(topic, partition, True, now_ms)
        self._adopt(replace(topic, partitions=partitions))
        self._store()

    def configure(self, name: str, overrides: Mapping[str, str | None], validate_only: bool = False) -> None:
        """Replace every override. Raises Refusal with UNKNOWN_TOPIC_OR_PARTITION or INVALID_CONFIG."""
        topic = replace(self.get(name), overrides=self.configs.check(overrides))
        if validate_only:
            return
        self._adopt(topic)
        self._store()
        policy = self.policy(topic)
        for partition in range(topic.partitions):
            self._logs[name, partition].policy = policy

    def policy(self, topic: Topic) -> LogPolicy:
        return self.configs.policy(topic.overrides)

    # -- storing --------------------------------------------------------------------------------------------

    def _adopt(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._names_by_id[topic.topic_id] = topic.name

    def _open_log(self, topic: Topic, partition: int, was_clean: bool, now_ms: int) -> None:
        folder = self._logs_folder / topic.folder_name / str(partition)
        log = PartitionLog(folder, self.policy(topic))
        log.open(was_clean, now_ms)
        self._logs[topic.name, partition] = log

    def _stored(self) -> list[Topic]:
        if not self._file.exists():
            return []
        try:
            entries = json.loads(self._file.read_text())
            return [
                Topic(entry["name"], uuid.UUID(entry["id"]), int(entry["partitions"]), dict(entry["configs"]))
                for entry in entries
            ]
        except (ValueError, KeyError, TypeError) as fault:
            raise DevBrokerError(
                f"cannot read {self._file}: {fault!r}; restore the file or start with an empty --data folder"
            ) from fault

    def _store(self) -> None:
        entries = [
            {"name": t.name, "id": str(t.topic_id), "partitions": t.partitions, "configs": dict(t.overrides)}
            for t in self.all()
        ]
        replace_file(self._file, json.dumps(entries, indent=1).encode())
