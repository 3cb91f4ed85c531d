"""Deltas from the learner to a rollout process: the same bytes as the full weights, or the full weights."""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from shared.contracts import Policy
from shared.errors import StorageError
from shared.storage import ObjectStore
from shared.weights.delta import DeltaFile
from tests.publishing.published import RUN, Follower, Publisher, damaged


def far_store() -> ObjectStore:
    return ObjectStore(f"memory://{uuid.uuid4().hex}/objects")


def told(logs: Any) -> str:
    return " ".join(str(line["error"]) for line in logs if line["event"].startswith("policy.delta_refused"))


@pytest.mark.parametrize(("dtype", "rate"), [(torch.bfloat16, 1e-5), (torch.float32, 3e-9)])
def test_a_follower_gets_the_bytes_of_the_full_weights(
    tmp_path: Path, dtype: torch.dtype, rate: float
) -> None:
    store = far_store()
    publisher, follower = Publisher(store, dtype=dtype, rate=rate, most_share=0.9), Follower(store, tmp_path)
    sizes = []
    for version in range(4):
        policy = publisher.publish()
        assert follower.follow(policy) == publisher.full(version)
        sizes += [delta.size_bytes for delta in policy.deltas[-1:]]
    assert follower.ways == ["full", "delta", "delta", "delta"]
    assert follower.moved == len(publisher.full(0)) + sum(sizes)
    assert len(list(tmp_path.iterdir())) == 1, "nothing lies there but what is served"


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.sampled_from(["publish", "publish", "publish", "stage", "restart", "follow", "newcomer", "prune"]),
        max_size=24,
    ),
    st.integers(1, 5),
    st.sampled_from(["memory", "file"]),
)
def test_whatever_happens_every_follower_gets_the_announced_bytes(
    tmp_path_factory: pytest.TempPathFactory, events: list[str], full_every: int, kind: str
) -> None:
    """Versions that were skipped, newcomers, restarts, stages, pruned chains; on a far store and on a folder."""
    folder = tmp_path_factory.mktemp("run")
    store = far_store() if kind == "memory" else ObjectStore(f"file://{folder}/objects")
    publisher = Publisher(store, full_every=full_every)
    followers = [Follower(store, folder / "cache-0")]
    policy, stage = publisher.publish(), 0
    for event in events:
        if event == "publish":
            policy = publisher.publish(stage)
        elif event == "stage":
            stage += 1
            policy = publisher.publish(stage)
            assert policy.deltas == (), "a stage begins with full weights"
        elif event == "restart":
            publisher.restart()
        elif event == "newcomer":
            followers.append(Follower(store, folder / f"cache-{len(followers)}"))
        elif event == "prune":
            publisher.deltas.prune()
            kept = {store.uri_of(key) for key in store.list(f"deltas/{RUN}/")}
            assert kept == {delta.uri for delta in policy.deltas}
        if event in ("follow", "newcomer"):
            before = len(followers[-1].ways)
            assert followers[-1].follow(policy) == publisher.full(policy.version)
            assert before or followers[-1].ways == ["full"], "a newcomer has no base"
        assert len(policy.deltas) < full_every
        assert [delta.version for delta in policy.deltas] == list(
            range(policy.version - len(policy.deltas) + 1, policy.version + 1)
        )


def test_a_process_that_missed_versions_takes_the_rest_of_the_chain(tmp_path: Path) -> None:
    store = far_store()
    publisher, late = Publisher(store), Follower(store, tmp_path)
    late.follow(publisher.publish())
    for _ in range(5):
        policy = publisher.publish()
    before = late.moved
    assert late.follow(policy) == publisher.full(5)
    assert late.ways == ["full", "delta"]
    assert late.moved - before == sum(delta.size_bytes for delta in policy.deltas)


def test_too_much_change_is_announced_as_full_weights(tmp_path: Path) -> None:
    store = far_store()
    publisher = Publisher(store, rate=1e-2, most_share=0.2)
    publisher.publish()
    assert publisher.publish().deltas == ()
    assert store.list("deltas/") == []
    publisher.optimizer.param_groups[0]["lr"] = 1e-7
    assert len(publisher.publish().deltas) == 1, "the version that was announced whole is the next base"


def _flip(data: bytearray) -> None:
    data[-40] ^= 1


def _other_base(data: bytearray) -> None:
    at = data.index(b"base_sha256") + 20
    data[at : at + 1] = b"0" if data[at : at + 1] != b"0" else b"1"


def _wrong_result(data: bytearray) -> None:
    at = data.rindex(b'\\"sha256\\"') + 14
    data[at : at + 1] = b"0" if data[at : at + 1] != b"0" else b"1"


def _cut(data: bytearray) -> None:
    del data[-100:]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (_flip, "hashes to"),
        (_cut, "hashes to"),
        (None, "no such object"),
    ],
    ids=["flipped", "cut", "gone"],
)
def test_a_delta_that_is_not_what_was_announced_costs_a_full_fetch(
    tmp_path: Path, how: Any, words: str
) -> None:
    store = far_store()
    publisher, follower = Publisher(store), Follower(store, tmp_path)
    follower.follow(publisher.publish())
    policy = publisher.publish()
    if how is None:
        store.delete("deltas")
    else:
        damaged(store, policy.deltas[0].uri, how)
    with capture_logs() as logs:
        assert follower.follow(policy) == publisher.full(1)
    assert follower.ways == ["full", "full"] and words in told(logs)


@pytest.mark.parametrize(
    ("how", "words"),
    [(_other_base, "is of weights"), (_wrong_result, "comes out as"), (_flip, "is damaged|comes out as")],
    ids=["base", "result", "values"],
)
def test_a_delta_that_was_published_wrong_costs_a_full_fetch(tmp_path: Path, how: Any, words: str) -> None:
    """Its object has the announced digest; what it makes has not."""
    store = far_store()
    publisher, follower = Publisher(store), Follower(store, tmp_path)
    follower.follow(publisher.publish())
    policy = publisher.publish()
    uri = policy.deltas[0].uri
    damaged(store, uri, how)
    digest = hashlib.sha256(store.get_bytes(uri)).hexdigest()
    wrong = policy.model_copy(update={"deltas": (policy.deltas[0].model_copy(update={"sha256": digest}),)})
    with capture_logs() as logs:
        assert follower.follow(wrong) == publisher.full(1)
    assert follower.ways == ["full", "full"]
    assert any(word in told(logs) for word in words.split("|")), told(logs)


def test_a_base_that_is_gone_costs_a_full_fetch(tmp_path: Path) -> None:
    """On a folder the first base lies in the learner's checkpoint, which may be pruned."""
    store = ObjectStore(f"file://{tmp_path}/objects")
    publisher, follower = Publisher(store), Follower(store, tmp_path / "cache")
    follower.follow(publisher.publish())
    policy = publisher.publish()
    store.delete(f"checkpoints/{RUN}/00000000")
    with capture_logs() as logs:
        assert follower.follow(policy) == publisher.full(1)
    assert follower.ways == ["full", "full"] and "no readable safetensors" in told(logs)


def test_a_retry_trusts_nothing_that_lies_here(tmp_path: Path) -> None:
    store = far_store()
    publisher, follower = Publisher(store), Follower(store, tmp_path)
    follower.follow(publisher.publish())
    policy = publisher.publish()
    follower.pull.get(policy)
    follower.pull.refused(policy)
    before = follower.moved
    assert follower.follow(policy, afresh=True) == publisher.full(1)
    assert follower.ways[-1] == "full" and follower.moved - before == len(publisher.full(1))


def test_processes_that_share_a_cache_rebuild_once(tmp_path: Path) -> None:
    store = far_store()
    publisher = Publisher(store)
    first, second = Follower(store, tmp_path), Follower(store, tmp_path)
    policy = publisher.publish()
    assert [first.follow(policy), second.follow(policy)] == [publisher.full(0)] * 2
    policy = publisher.publish()
    assert [first.follow(policy), second.follow(policy)] == [publisher.full(1)] * 2
    assert second.moved == 0, "it found what the other had fetched and made"
    assert (tmp_path / policy.weights.sha256).is_file()
    second.follow(publisher.publish())
    assert (tmp_path / policy.weights.sha256).is_file(), "the first still serves it"


def test_a_process_that_is_started_again_goes_on_from_what_it_had(tmp_path: Path) -> None:
    store = far_store()
    publisher = Publisher(store)
    before = Follower(store, tmp_path)
    before.follow(publisher.publish())
    before.pull.close()
    policy, after = publisher.publish(), Follower(store, tmp_path)
    assert after.follow(policy) == publisher.full(1) and after.ways == ["delta"]
    after.pull.close()
    # Half of a file under its name, as a machine that went down may leave it.
    (tmp_path / policy.weights.sha256).write_bytes(publisher.full(1)[:1000])
    policy, third = publisher.publish(), Follower(store, tmp_path)
    assert third.follow(policy) == publisher.full(2) and third.ways == ["full"]


def test_another_shape_is_announced_as_full_weights() -> None:
    store = far_store()
    publisher = Publisher(store)
    publisher.publish()
    publisher.step()
    head = publisher.policy.model.model.norm
    head.weight = torch.nn.Parameter(torch.ones(65))
    tensors = publisher.policy.published_tensors()
    weights = publisher.checkpoints.write_weights(1, tensors)
    assert publisher.deltas.publish(1, 0, tensors, weights) == ()


def test_what_is_not_wanted_costs_nothing(tmp_path: Path) -> None:
    """`auto`: bfloat16 over a store that is not a folder of this machine."""
    local = ObjectStore(f"file://{tmp_path}")
    for store, dtype, wanted in (
        (far_store(), torch.bfloat16, True),
        (far_store(), torch.float32, False),
        (local, torch.bfloat16, False),
    ):
        publisher = Publisher(store, dtype=dtype, deltas="auto")
        assert publisher.deltas.wanted is wanted
        publisher.publish()
        assert bool(publisher.publish().deltas) is wanted
    assert not Publisher(far_store(), full_every=1).deltas.wanted


def test_a_delta_says_what_it_is(tmp_path: Path) -> None:
    """Any reader of safetensors can look into one."""
    from safetensors.numpy import load_file

    store = far_store()
    publisher = Publisher(store)
    base, policy = publisher.publish(), publisher.publish()
    place = tmp_path / "delta.safetensors"
    place.write_bytes(store.get_bytes(policy.deltas[0].uri))
    delta = DeltaFile(place)
    assert (delta.versions.base_version, delta.versions.version) == (0, 1)
    assert (delta.versions.base_sha256, delta.versions.sha256) == (base.weights.sha256, policy.weights.sha256)
    digests = {entry.name: entry.sha256 for entry in policy.weights.tensors}
    assert {name: delta.sha256_of(name) for name in delta.tensors} == {
        name: digests[name] for name in delta.tensors
    }
    arrays = load_file(str(place))
    assert {name.rpartition("/")[0] for name in arrays} == set(delta.tensors)
    assert all(array.dtype == np.uint8 for array in arrays.values())
    with pytest.raises(StorageError, match="has format 'pt'"):
        (tmp_path / "full").write_bytes(publisher.full(1))
        DeltaFile(tmp_path / "full")


def test_a_chain_that_does_not_lead_to_the_weights_is_refused() -> None:
    store = far_store()
    publisher = Publisher(store)
    publisher.publish()
    policy = publisher.publish()
    body = json.loads(policy.model_dump_json())
    body["deltas"][0]["result_sha256"] = "0" * 64
    with pytest.raises(ValueError, match="the delta to version 1 makes 000000000000"):
        Policy.model_validate(body)
