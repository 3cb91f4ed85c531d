"""What vLLM says of its key-value room after each of its steps.

Invariant: numbers are vLLM's own (the share of cache blocks that requests hold, and requests it pushed out); its stats
are no stable interface, so what is missing reads as nothing known.
"""

from __future__ import annotations

from typing import Any


class RoomStats:
    """A stat logger as vLLM calls them, from its output loop."""

    def __init__(self) -> None:
        self.kv_use = 0.0
        self.preempted = 0

    def factory(self, config: Any, engine: int = 0) -> RoomStats:
        """For `stat_loggers`: one engine, one object."""
        return self

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if scheduler_stats is not None:
            self.kv_use = float(getattr(scheduler_stats, "kv_cache_usage", 0.0))
        if iteration_stats is not None:
            self.preempted += int(getattr(iteration_stats, "num_preempted_reqs", 0))

    def log_engine_initialized(self) -> None:
        """Said by our own log."""

    def log(self) -> None:
        """Said by heartbeats."""

    def record_sleep_state(self, is_awake: int = 0, level: int = 0) -> None:
        """It never sleeps."""
