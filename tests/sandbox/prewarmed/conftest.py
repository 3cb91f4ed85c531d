from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sandbox.machines import MODES, Jailer, jailer


@pytest.fixture(scope="module", params=MODES)
def jail(request: pytest.FixtureRequest) -> Iterator[Jailer]:
    """A sandbox in every way of counting that this machine has."""
    with jailer(request.param) as made:
        yield made
