"""Tokens count by the verdict on the weights that sampled them."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from services.rollout.engines.labels import Labels


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=6),
    st.booleans(),
)
def test_what_counts_ends_at_the_first_refuted_label(
    loads: list[tuple[int, bool]], places: list[tuple[int, int]], late: bool
) -> None:
    async def run() -> list[int]:
        labels = Labels()
        names = [labels.new(version) for version, _ in loads]
        assert len(set(names)) == len(names)
        spans = [(names[place % len(names)], length) for place, length in places]
        settling = asyncio.create_task(labels.settle(spans)) if late else None
        await asyncio.sleep(0)
        assert settling is None or settling.done() == (not spans)
        for name, (version, proven) in zip(names, loads, strict=True):
            labels.proven(name, version) if proven else labels.refuted(name)
        return await (settling or labels.settle(spans))

    expected: list[int] = []
    for place, length in places:
        version, proven = loads[place % len(loads)]
        if not proven:
            break
        expected += [version] * length
    assert asyncio.run(run()) == expected
