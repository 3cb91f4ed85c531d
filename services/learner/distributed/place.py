"""Which of a learner's processes this one is, from the environment that `torchrun` gives.

Invariant: light to import, and without these variables a process is alone: nothing else says that there are others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.errors import ConfigError
from shared.settings import LearnerSettings


@dataclass(frozen=True, slots=True)
class Place:
    """Process `rank` of `ranks`, and number `local_rank` on its machine (which accelerator it takes)."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Rank 0 alone reads and writes topics and checkpoints."""
        return self.rank == 0


def place_of(environment: Mapping[str, str]) -> Place:
    """RANK, WORLD_SIZE and LOCAL_RANK (https://docs.pytorch.org/docs/stable/elastic/run.html). Raises `ConfigError`."""
    try:
        ranks = int(environment.get("WORLD_SIZE", "1"))
        rank = int(environment.get("RANK", "0"))
        place = Place(rank, ranks, int(environment.get("LOCAL_RANK", str(rank))))
    except ValueError as error:
        raise ConfigError(
            f"RANK, WORLD_SIZE and LOCAL_RANK must be numbers ({error}); torchrun sets them"
        ) from error
    if not 0 <= place.rank < place.ranks:
        raise ConfigError(f"RANK is {place.rank} and WORLD_SIZE {place.ranks}; torchrun sets both")
    return place


def check_place(learner: LearnerSettings, place: Place) -> None:
    """Raises `ConfigError` where these processes cannot be what the settings ask for."""
    parallel = learner.parallel
    if place.ranks % parallel.context:
        raise ConfigError(
            f"learner.parallel.context is {parallel.context} and the learner has {place.ranks} processes: "
            "each sequence is spread over `context` of them, so their number must be a multiple; "
            f"set learner.processes to {parallel.context * max(1, place.ranks // parallel.context)}"
        )
    if parallel.shard and place.ranks == 1:
        raise ConfigError(
            "learner.parallel.shard is set and the learner is one process: nothing would be sharded; "
            "set learner.processes to 2 or more, or shard to false"
        )
