"""Scheduler, evaluation and rollout."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from shared.settings.section import Section


class SchedulerSettings(Section):
    max_lag: int = Field(default=1, ge=0)
    """Policy versions a trained token may be behind; 0 is the synchronous mode."""
    group_deadline_s: float = Field(default=300.0, gt=0)
    """After it a group is scheduled again as a new attempt."""
    max_group_attempts: int = Field(default=3, ge=1)
    """A group that is not complete by its deadline is sent again; after so many times it is given up."""
    stall_s: float = Field(default=600.0, gt=0)
    """No progress for so long ends the run with a reason."""


class EvaluationSettings(Section):
    every_steps: int = Field(default=0, ge=0)
    """0: only at the start, at the end of each stage and at the end of the run."""
    instances_per_domain: int = Field(default=64, ge=1)
    """Held-out instances, the same ones at every evaluation."""
    at_start: bool = True
    """Also before the first step."""
    temperature: float = Field(default=0.0, ge=0)
    """0: the likeliest token each time."""


class RolloutSettings(Section):
    processes: int = Field(default=1, ge=0)
    """That `temper up` starts."""
    engine: Literal["transformers", "vllm", "openai", "instant"] = "transformers"
    """`vllm` wants the extra of that name, `openai` a server at `server`. `instant` answers from a table without a
    model: it measures the loop, not the policy."""
    follow: Literal["in_flight", "between_turns", "drain"] = "in_flight"
    """When a new policy goes in: between two tokens of what runs, between two turns, or between two episodes."""
    server: str = ""
    """Of the engine `openai`: the base URL, `http://host:port/v1`. Its key comes from OPENAI_API_KEY."""
    server_model: str = ""
    """The model's name there; empty: the first that the server lists."""
    hand_back: Literal["never", "shutdown", "publish"] = "shutdown"
    """When attempts that run are handed back to their topic, with what was sampled of them, for another process to go on
    with: at the end of a shutdown's `bus.drain_s`; with `publish` also when a new policy waits to go in."""
    workloads: tuple[str, ...] = ()
    """Those whose tasks are taken; empty: all."""
    max_batch: int = Field(default=64, ge=1)
    """Sequences decoded together."""
    max_batch_tokens: int = Field(default=16_384, ge=64)
    """Key-value slots: sum over running sequences of prompt + max_tokens."""
    concurrency: int = Field(default=16, ge=1)
    """Tasks handled at once, of all workloads."""
    adapt_concurrency: bool = True
    """Fewer tasks of a workload at once than `concurrency` where the engine's key-value room is short."""
    threads: int = Field(default=0, ge=0)
    """Of torch; 0 leaves its own choice."""
    device: str = "auto"
    """`auto`: an accelerator where there is one."""

    @model_validator(mode="after")
    def _has_a_server(self) -> RolloutSettings:
        if self.engine == "openai" and not self.server.startswith(("http://", "https://")):
            raise ValueError(
                f"rollout.server is {self.server!r} and rollout.engine is 'openai': give the server's base URL, "
                "such as http://127.0.0.1:8000/v1"
            )
        return self
