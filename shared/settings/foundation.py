"""What every service of a run shares: its name and folder, bus, store, model and telemetry."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from shared.settings.section import Section


class RunSettings(Section):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Also the run_id; a second start with the same name resumes."""
    seed: int = Field(default=0, ge=0)
    """Of instances, sampling and initial draws: two runs with one seed and one engine attempt the same."""
    folder: str = "runs"
    """The run writes into `<folder>/<name>`."""


class BusSettings(Section):
    bootstrap_servers: str = ""
    """Comma separated `host:port`. Empty: `temper up` starts the dev broker in the run's folder."""
    namespace: str = Field(default="temper", pattern=r"^[a-z0-9][a-z0-9_-]{0,30}$")
    """What the names of all topics begin with; runs of one namespace share topics."""
    partitions: int = Field(default=4, ge=1, le=1000)
    """Of every tasks, trajectories and rewards topic."""
    replication_factor: int = Field(default=1, ge=1)
    """Of every topic."""
    connect_timeout_s: float = Field(default=60.0, gt=0)
    """How long a service waits for its broker and topics before it ends with exit code 3."""
    claim_check_bytes: int = Field(default=256 * 1024, ge=1024)
    """Bodies above it go to the object store, and a ticket travels in their place."""
    max_record_bytes: int = Field(default=1_000_000, ge=2048)
    """Refused above it. Apache Kafka's own default limit is 1,048,588 with overhead."""
    session_timeout_ms: int = Field(default=15_000, ge=1000)
    """A consumer that is silent for so long loses its partitions to others."""
    rebalance: Literal["cooperative", "eager"] = "cooperative"
    """`cooperative`: partitions that stay go on meanwhile (KIP-429). `eager`: all stop."""
    retry_delays_s: tuple[float, ...] = (1.0, 10.0, 60.0)
    """Pauses before the second, third, … delivery of a record whose handling failed; the last one repeats."""
    max_attempts: int = Field(default=4, ge=1)
    """Deliveries of one record before it is a dead letter."""
    drain_s: float = Field(default=20.0, gt=0)
    """How long running handlers may go on when partitions are revoked or the service stops."""

    @field_validator("bootstrap_servers")
    @classmethod
    def _is_an_address(cls, servers: str) -> str:
        for server in filter(None, (part.strip() for part in servers.split(","))):
            host, _, port = server.rpartition(":")
            if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError(f"{server!r} is no address of a broker: write host:port, port 1 to 65535")
        return servers


class StorageSettings(Section):
    uri: str = ""
    """fsspec URI of the object store; empty: `<run folder>/objects`."""
    cache_bytes: int = Field(default=0, ge=0)
    """What a rollout process keeps of policies beside the one that it serves; 0: nothing."""
    patience_s: float = Field(default=180.0, gt=0)
    """How long the learner waits for a remote store that does not answer, and how long a rollout process goes on with
    the policy that it has while a newer one cannot be read. Then the process ends with exit code 5."""


class ModelSettings(Section):
    path: str
    """A Hugging Face folder: configuration, tokenizer, safetensors."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    chat_template: str = ""
    """Overrides the tokenizer's Jinja template."""


class TelemetrySettings(Section):
    log_format: Literal["console", "json"] = "console"
    """`json`: one object a line."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    traces: Literal["file", "otlp", "none"] = "file"
    """`otlp` is chosen by itself where OTEL_EXPORTER_OTLP_ENDPOINT is set."""
    heartbeat_s: float = Field(default=2.0, gt=0)
    """Between two heartbeats of a process."""
