"""What rank 0 tells the other ranks to do, one command after another.

Invariant: a command is a few plain values; tensors and batches follow it by collectives of their own, in the order in
which the method of `Replica` that it names makes them. Whoever obeys calls the same method as rank 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.learner.objectives.presets import Objective


@dataclass(frozen=True, slots=True)
class Take:
    """A step; the shares of its batch follow. `judged`: the guard wants the numbers of every token."""

    objective: Objective
    learning_rate: float
    kl_coefficient: float
    judged: bool


@dataclass(frozen=True, slots=True)
class PutWeights:
    """The weights follow."""


@dataclass(frozen=True, slots=True)
class ForgetMoments:
    """A stage begins."""


@dataclass(frozen=True, slots=True)
class FreezeReference:
    """The policy as it is becomes the reference."""


@dataclass(frozen=True, slots=True)
class PutReference:
    """The reference's weights follow."""


@dataclass(frozen=True, slots=True)
class DropReference:
    """A stage without one begins."""


@dataclass(frozen=True, slots=True)
class GatherWeights:
    """Rank 0 wants the weights whole."""


@dataclass(frozen=True, slots=True)
class GatherServed:
    """Likewise, in the dtype that is served."""


@dataclass(frozen=True, slots=True)
class StageOptimizer:
    """The checkpoint of `step` is due: every rank copies its part of the optimizer's state and writes it beside what
    comes next."""

    step: int


@dataclass(frozen=True, slots=True)
class LoadOptimizer:
    """Every rank reads its part again from `folder` of the object store. `digests`: sha256 by file name."""

    folder: str
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Score:
    """The canary's log-probabilities are wanted: every rank's shards take part."""

    tolerance: float


@dataclass(frozen=True, slots=True)
class Beat:
    """Nothing: rank 0 is there and waits for groups."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The run has ended, or the service stops."""


Command = (
    Take
    | PutWeights
    | ForgetMoments
    | FreezeReference
    | PutReference
    | DropReference
    | GatherWeights
    | GatherServed
    | StageOptimizer
    | LoadOptimizer
    | Score
    | Beat
    | Leave
)
