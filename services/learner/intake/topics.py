"""Which topics a learner reads."""

from __future__ import annotations

from shared.bus.topics import TopicNames
from shared.settings import Settings


def intake_topics(settings: Settings) -> list[str]:
    """Every trajectories topic, and rewards."""
    names = TopicNames(settings.bus.namespace)
    attempts = [names.trajectories(w.name, p) for w in settings.workloads for p in w.priorities]
    return [*attempts, names.rewards]
