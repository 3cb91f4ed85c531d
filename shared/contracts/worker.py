"""Heartbeat: who is alive, what it serves, what it waits for."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from shared.contracts.base import Message

Service = Literal["scheduler", "rollout", "verifier", "learner"]
WorkerState = Literal["starting", "idle", "working", "waiting", "draining", "stopped", "failed"]


GROUP_PID = "TEMPER_GROUP_PID"
"""Environment: the process that started this one together with others and stands for them all."""


class Heartbeat(Message):
    SCHEMA: ClassVar[str] = "temper.heartbeat"

    run_id: str
    worker_id: str
    service: Service
    state: WorkerState
    waits_for: str = ""
    """In words, when it does not work: `the first policy`, `rewards of 3 groups`."""
    policy_version: int = -1
    in_flight: int = 0
    processed: int = 0
    failures: int = 0
    lag: int = 0
    """Records between the group's committed position and the end, over the partitions it owns."""
    gauges: dict[str, float] = Field(default_factory=dict)
    pid: int = 0
    """Of the process that others start and stop; that of its group where it is one of several (`GROUP_PID`)."""
    created_ms: int = 0

    def key(self) -> str:
        return f"{self.run_id}/{self.worker_id}"
