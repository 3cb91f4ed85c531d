"""Leases against a dictionary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigError
from shared.sandbox.sessions.leases import Leases


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["grant", "renew", "give_back", "over"]), st.integers(0, 9), st.integers(1, 20)
        )
    )
)
def test_a_lease_is_over_exactly_once(program: list[tuple[str, int, int]]) -> None:
    leases, model, now, told = Leases(), dict[int, float](), 0.0, list[int]()
    for kind, which, seconds in program:
        now += which
        if kind == "grant":
            model[leases.grant(now, seconds)] = now + seconds
        elif kind == "renew":
            held = model.get(which)
            assert leases.renew(which, now, seconds) == (held is not None and held > now)
            if held is not None and held > now:
                model[which] = max(held, now + seconds)
        elif kind == "give_back":
            assert leases.give_back(which) == (model.pop(which, None) is not None)
        else:
            ended = leases.over(now)
            assert sorted(ended) == sorted(lease for lease, until in model.items() if until <= now)
            assert not set(ended) & set(told)
            told += ended
            model = {lease: until for lease, until in model.items() if until > now}
        assert len(leases) == len(model)
        assert leases.next_end() == min(model.values(), default=None)


def test_a_lease_has_a_length() -> None:
    for seconds in (0, -1, float("nan")):
        with pytest.raises(ConfigError, match="must be positive"):
            Leases().grant(0, seconds)
