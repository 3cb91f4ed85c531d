"""Changes of one tensor: what is applied is what was encoded, to the bit, and damage is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from shared.weights.sparse import BadChangeError, apply, encode

DTYPES = st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64])


@st.composite
def versions(draw: Any) -> tuple[Any, Any]:
    """Two versions of a tensor: from nothing changed to everything, in places near and far."""
    dtype = draw(DTYPES)
    size = draw(st.integers(0, 3000))
    top = np.iinfo(dtype).max
    old = np.random.default_rng(draw(st.integers(0, 99))).integers(0, top, size, dtype=dtype, endpoint=True)
    new = old.copy()
    if size:
        at = draw(st.lists(st.integers(0, size - 1), max_size=20))
        share = draw(st.sampled_from([0.0, 0.0, 0.02, 0.2, 0.45, 0.8, 1.0]))
        rows = np.random.default_rng(draw(st.integers(0, 99))).random(size) < share
        rows[at] = True
        steps = draw(arrays.arrays(dtype, 1, elements=st.integers(0, int(top))))
        new[rows] += steps[0]
    return old, new


@given(versions())
def test_what_is_applied_is_what_was_encoded(pair: tuple[Any, Any]) -> None:
    old, new = pair
    change = encode(old, new)
    if change is None:
        assert (old == new).all()
        return
    assert change.count == int((old != new).sum())
    words = old.copy()
    apply(change, words)
    assert words.dtype == new.dtype and (words == new).all()


@pytest.mark.parametrize(("share", "form"), [(0.001, "gaps"), (0.3, "bitmap"), (0.9, "whole")])
def test_the_smaller_form_is_taken_and_small_steps_cost_little(share: float, form: str) -> None:
    draw = np.random.default_rng(0)
    old = draw.integers(0, 1 << 16, 200_000, dtype=np.uint16)
    rows = draw.random(len(old)) < share
    new = old + rows * draw.choice(np.array([1, 65535], dtype=np.uint16), len(old))
    change = encode(old, new)
    assert change is not None and change.form == form
    entropy = -share * np.log2(share) - (1 - share) * np.log2(1 - share) + share
    if form != "whole":
        # Within 1.7 of what the positions and the signs tell at least.
        assert change.stored_bytes < 1.7 * len(old) * entropy / 8 + 64


@given(versions(), st.integers(0, 1 << 30), st.sampled_from(["places", "values", "cut", "count", "size"]))
def test_damage_is_refused_or_changes_words_but_never_more(
    pair: tuple[Any, Any], where: int, kind: str
) -> None:
    """The digests catch what still looks like a change; nothing else may happen than `BadChangeError`."""
    old, new = pair
    change = encode(old, new)
    if change is None:
        return
    if kind in ("places", "values"):
        part = getattr(change, kind).copy()
        if not len(part):
            return
        part[where % len(part)] ^= 1 << (where % 8)
        change = dataclasses.replace(change, **{kind: part})
    elif kind == "cut":
        change = dataclasses.replace(change, values=change.values[: where % len(change.values)])
    else:
        change = dataclasses.replace(change, **{kind: where % 4000})
    words = old.copy()
    try:
        apply(change, words)
    except BadChangeError:
        return
    assert len(words) == len(old)
