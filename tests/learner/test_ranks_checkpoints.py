"""Two ranks write one checkpoint: each its own part, all of it or nothing, and any number of ranks goes on from it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from learner_builders import RUN
from ranks_life import Told, Wanted, live
from safetensors.torch import load_file
from test_learner_resume import KilledError, Life, bytes_of, log_of, run_settings

from services.learner.checkpoint_folders import CheckpointFolders
from shared.storage import ObjectStore

WAYS = {"whole": (False, torch.float32), "sharded": (True, torch.bfloat16)}
"""Each rank holds the model; each holds a half of it, and the masters of what is served."""

pytestmark = pytest.mark.slow
numbers = itertools.count()


def wanted(way: str, folder: Path, **more: int) -> Wanted:
    shard, served = WAYS[way]
    return Wanted(folder, shard, served, **more)


def lived(wish: Wanted) -> Told:
    told, codes = live(wish, wish.folder.parent / f"rendezvous-{next(numbers)}")
    assert codes == [0, 0] and not told.failure
    return told


def folders(place: Path) -> CheckpointFolders:
    return CheckpointFolders(ObjectStore(f"file://{place / 'objects'}"), RUN)


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def quiet(way: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Told]:
    """A learner that nothing happens to: its folder, and what it ends with."""
    folder = tmp_path_factory.mktemp("quiet") / "run"
    told = lived(wanted(way, folder))
    assert told.versions == [0, 1, 2, 3, 4, 5]
    return folder, told


def test_a_rank_that_dies_while_it_writes_leaves_no_checkpoint(
    way: str, quiet: tuple[Path, Told], tmp_path: Path
) -> None:
    stormy = tmp_path / "run"
    told, codes = live(wanted(way, stormy, killed_at=4), tmp_path / "rendezvous")
    assert codes == [0, -9] and "lost another one" in told.failure
    assert folders(stormy).steps() == [0, 1, 2, 3] and not folders(stormy).incomplete()

    again = lived(wanted(way, stormy))
    assert again.versions == [3, 4, 5]
    assert again.state == quiet[1].state


def test_each_rank_writes_its_part_and_no_other(way: str, quiet: tuple[Path, Told]) -> None:
    place = quiet[0] / "objects" / "checkpoints" / RUN / "00000004"
    files = json.loads((place / "manifest.json").read_text())["files"]
    shards = [load_file(place / f"optimizer-{rank:05d}-of-00002.safetensors") for rank in range(2)]
    assert {f"optimizer-{rank:05d}-of-00002.safetensors" for rank in range(2)} < set(files)
    index = json.loads((place / "optimizer.index.json").read_text())["tensors"]
    elements = [sum(tensor.numel() for tensor in shard.values()) for shard in shards]
    assert sum(elements) == sum(torch.Size(kind["shape"]).numel() for kind in index.values())
    assert max(elements) < 0.6 * sum(elements), elements
    assert any(name.startswith("master.") for name in index) == (way == "sharded")


def test_any_number_of_ranks_goes_on_from_any_other(way: str, tmp_path: Path) -> None:
    """One process writes, two read; they write, and one reads."""
    settings = run_settings(tmp_path / "run")
    first = Life(settings, log_of(), kill="before publishing", at_step=3, served=WAYS[way][1])
    with pytest.raises(KilledError):
        first.live()
    opened = lived(wanted(way, tmp_path / "run", until=3))
    assert opened.state == bytes_of(first.trainer) and opened.versions == [3]

    fourth = lived(wanted(way, tmp_path / "run", until=4))
    assert fourth.versions == [3, 4]
    again = Life(settings, [], served=WAYS[way][1]).live(seed=5)
    assert bytes_of(again) == fourth.state
    assert again.progress.step == 4
