"""Which policy is loaded when: property test of the state machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollout.following import Following
from shared.contracts import Canary, Policy, WeightsRef


def policy(version: int, run_id: str = "run", **changes: Any) -> Policy:
    empty = np.zeros(0, dtype=np.int32)
    values: dict[str, Any] = {
        "step": version,
        "stage": "rl",
        "stage_index": 0,
        "weights": WeightsRef(uri="file:///nowhere", sha256="0" * 64, size_bytes=1),
        "canary": Canary(token_ids=empty, lengths=empty, logprobs=np.zeros(0, dtype=np.float32)),
        "checkpoint_uri": "file:///nowhere",
    }
    return Policy(run_id=run_id, version=version, **(values | changes))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("announce"), st.integers(0, 20), st.sampled_from(["run", "other"])),
            st.tuples(st.sampled_from(["load", "fail"])),
        ),
        max_size=60,
    )
)
def test_never_back_never_overtaken_ends_after_two_failures(events: list[Any]) -> None:
    following = Following("run")
    announced: set[int] = set()
    failures = 0
    for event in events:
        if event[0] == "announce":
            following.observe(policy(event[1], event[2]))
            if event[2] == "run":
                announced.add(event[1])
            continue
        due, before = following.due(), following.served
        if due is None:
            assert failures >= 2 or all(version <= before for version in announced)
            continue
        assert due.version == max(announced) > before
        if event[0] == "load":
            following.succeeded(due)
            failures = 0
            assert following.served == due.version
        else:
            following.failed(due)
            failures += 1
            assert following.served == before
    assert following.given_up == (failures >= 2)


def test_going_back_is_refused() -> None:
    following = Following("run")
    following.observe(policy(4))
    following.succeeded(policy(4))
    following.observe(policy(3))
    assert following.due() is None
    with pytest.raises(ValueError, match="never go back"):
        following.succeeded(policy(3))
