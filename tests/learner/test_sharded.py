"""Sharded tensors: what some ranks wrote, other ranks read to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sharding_ranks import full_tensors, on_ranks

from services.learner.sharded import SavedShards, load_sharded, read_sharded, save_sharded
from services.learner.sharded.index import read_index
from shared.errors import DigestMismatchError, StorageError
from shared.storage import ObjectStore


def saved(place: Path, tensors: dict[str, torch.Tensor], folder: str = "any") -> dict[str, str]:
    files = save_sharded(ObjectStore(f"file://{place}"), folder, "optimizer", tensors)
    return {name: file.sha256 for name, file in files.items()}


def lies(place: Path, digests: dict[str, str], folder: str = "any") -> SavedShards:
    return SavedShards(ObjectStore(f"file://{place}"), folder, "optimizer", digests, place / "cache")


def read(place: Path, digests: dict[str, str], folder: str = "any") -> dict[str, torch.Tensor]:
    return read_sharded(lies(place, digests, folder))


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        a.dtype == other[name].dtype and torch.equal(a, other[name]) for name, a in one.items()
    )


def test_one_process_reads_what_it_wrote(tmp_path: Path) -> None:
    digests = saved(tmp_path, full_tensors())
    assert set(digests) == {"optimizer.index.json", "optimizer-00000-of-00001.safetensors"}
    assert equal(read(tmp_path, digests), full_tensors())
    # Any other tool reads the file too.
    assert equal(load_file(tmp_path / "any" / "optimizer-00000-of-00001.safetensors"), full_tensors())


def test_nothing_is_something_to_write(tmp_path: Path) -> None:
    digests = saved(tmp_path, {})
    assert set(digests) == {"optimizer.index.json"}
    assert read(tmp_path, digests) == {}


@pytest.mark.slow
def test_two_ranks_to_one_and_back(tmp_path: Path) -> None:
    digests, others = on_ranks("save", tmp_path)
    assert others == {}
    assert set(digests) == {
        "optimizer.index.json", "optimizer-00000-of-00002.safetensors", "optimizer-00001-of-00002.safetensors",
    }  # fmt: skip
    held = [load_file(tmp_path / "two" / name) for name in digests if name.endswith(".safetensors")]
    # Every element once: 7·4 + 3 + 4·6 + the scalar.
    assert sum(tensor.numel() for shard in held for tensor in shard.values()) == 28 + 3 + 24 + 1
    assert equal(read(tmp_path, digests, "two"), full_tensors())
    again = saved(tmp_path, full_tensors())
    assert on_ranks("load", tmp_path, again) == [True, True]
    told = on_ranks("fail", tmp_path)
    assert told[0] == told[1] and "two-broken" in told[0]


def test_a_damaged_file_changes_no_tensor(tmp_path: Path) -> None:
    digests = saved(tmp_path, full_tensors())
    shard = tmp_path / "any" / "optimizer-00000-of-00001.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    target = {name: torch.zeros_like(tensor) for name, tensor in full_tensors().items()}
    with pytest.raises(DigestMismatchError, match="optimizer-00000-of-00001"):
        load_sharded(lies(tmp_path, digests), target)
    assert not any(tensor.any() for tensor in target.values())


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    digests = saved(tmp_path, full_tensors())
    for name, shape in (("exp_avg.other", (2,)), ("exp_avg.thin", (4,))):
        with pytest.raises(StorageError, match=f"{name} of shape .* is wanted"):
            load_sharded(lies(tmp_path, digests), {name: torch.zeros(shape)})
    with pytest.raises(StorageError, match="does not name optimizer-00000-of-00001"):
        read(tmp_path, {"optimizer.index.json": digests["optimizer.index.json"]})


def test_an_index_of_another_format_is_refused() -> None:
    with pytest.raises(StorageError, match="has format 2, this build reads 1"):
        read_index(json.dumps({"format": 2}).encode(), "somewhere")
    for raw in (b"", b"[]", b'{"format": 1, "tensors": {"a": {"dtype": "F31", "shape": [], "parts": []}}}'):
        with pytest.raises(StorageError, match="somewhere is no index"):
            read_index(raw, "somewhere")
