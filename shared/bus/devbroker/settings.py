"""Settings of the dev broker.

Invariant: a settings object is valid and immutable; where Apache Kafka has the same knob, the default is Kafka's
unless the comment beside it says why not.
"""

from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from shared.errors import TemperError


class DevBrokerError(TemperError):
    """The broker can't start or can't go on; the message names the thing and the mend."""

    exit_code = 2


class FlushPolicy(StrEnum):
    """When written data is forced to the disk. A kill of the process loses nothing under any of them."""

    NEVER = "never"
    INTERVAL = "interval"
    ALWAYS = "always"


class DevBrokerSettings(BaseModel):
    """Everything that one broker process is told. Sizes are bytes, times are milliseconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535, description="0 picks a free port")
    advertised_host: str | None = Field(
        default=None, description="what clients are told; without it, the address that each client dialled"
    )
    default_partitions: int = Field(default=1, ge=1)
    message_max_bytes: int = Field(default=1_048_588, ge=1)
    segment_bytes: int = Field(
        default=64 * 1024 * 1024, ge=1, description="1 GiB in Kafka; laptops have less"
    )
    check_interval_ms: int = Field(
        default=15_000, ge=10, description="how often retention and compaction run"
    )
    flush: FlushPolicy = FlushPolicy.INTERVAL
    flush_interval_ms: int = Field(default=1_000, ge=1)
    request_max_bytes: int = Field(
        default=104_857_600, ge=1024, description="a larger frame closes the connection"
    )
    fetch_max_bytes: int = Field(default=57_671_680, ge=1024)
    offset_metadata_max_bytes: int = Field(default=4_096, ge=0)
    group_min_session_timeout_ms: int = Field(
        default=1_000, ge=1, description="6 s in Kafka; a demo shows a crash being noticed sooner"
    )
    group_max_session_timeout_ms: int = Field(default=1_800_000, ge=1)
    group_initial_rebalance_delay_ms: int = Field(
        default=0, ge=0, description="3 s in Kafka; nobody waits here"
    )
    producer_id_expiration_ms: int = Field(default=86_400_000, ge=1)
    node_id: int = 1
