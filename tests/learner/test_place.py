"""Who a process of the learner is, and what settings it cannot be."""

from __future__ import annotations

import pytest
from ranks_cases import OBJECTIVES, batch
from torch import nn

from services.learner.distributed.place import Place, check_place, place_of
from services.learner.distributed.split import split
from services.learner.distributed.spread_policy import layers_of
from shared.errors import ConfigError
from shared.settings import LearnerSettings, ParallelSettings


def test_alone_unless_the_environment_says_otherwise() -> None:
    assert place_of({}) == Place(0, 1, 0)
    told = place_of({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})
    assert told == Place(5, 8, 1) and not told.leads


@pytest.mark.parametrize(
    "told", [{"RANK": "2", "WORLD_SIZE": "2"}, {"WORLD_SIZE": "two"}, {"RANK": "-1", "WORLD_SIZE": "2"}]
)
def test_an_environment_that_makes_no_sense_is_named(told: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="torchrun sets"):
        place_of(told)


@pytest.mark.parametrize(
    ("parallel", "ranks", "mend"),
    [
        (ParallelSettings(context=3), 4, r"processes to 3"),
        (ParallelSettings(context=2), 1, r"processes to 2"),
        (ParallelSettings(shard=True), 1, r"processes to 2 or more"),
    ],
)
def test_what_these_processes_cannot_be_is_refused(parallel: ParallelSettings, ranks: int, mend: str) -> None:
    with pytest.raises(ConfigError, match=mend):
        check_place(LearnerSettings(parallel=parallel), Place(0, ranks))


def test_a_model_is_sharded_by_its_layers_and_not_by_the_experts_in_one() -> None:
    layers = [nn.ModuleDict({"experts": nn.ModuleList([nn.Linear(1, 1)] * 9)}) for _ in range(3)]
    model = nn.ModuleDict({"body": nn.ModuleDict({"layers": nn.ModuleList(layers)}), "head": nn.Linear(1, 1)})
    assert layers_of(model) == layers
    with pytest.raises(ConfigError, match="set it to false"):
        layers_of(nn.Linear(1, 1))


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("shares", [1, 2, 3, 9])
def test_shares_hold_every_row_once(name: str, shares: int) -> None:
    whole = batch(OBJECTIVES[name])
    parts = split(whole, shares)
    assert len(parts) == shares
    rows = [id(row) for part in parts for row in part.rows]
    assert sorted(rows) == sorted(id(row) for row in whole.rows)
    assert [pair for part in parts for pair in part.pairs] != [] if whole.pairs else True
    for part in parts:
        assert part.attempts == whole.attempts and part.denominators == whole.denominators
        assert [row for pair in part.pairs for row in pair.rows] == list(part.rows) or not whole.pairs
    loads = [sum(row.length for row in part.rows) for part in parts]
    assert max(loads) - min(loads) <= max(row.length for row in whole.rows) * (2 if whole.pairs else 1)
