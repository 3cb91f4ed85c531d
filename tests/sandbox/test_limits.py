"""Limits that no machine can keep are refused as configuration; the largest that are taken can be run with."""

from __future__ import annotations

from dataclasses import fields

import pytest

from shared.errors import ConfigError
from shared.sandbox.command import Command
from shared.sandbox.limits import MOST, Limits
from tests.sandbox.machines import MODES, jailer


@pytest.mark.parametrize("name", [item.name for item in fields(Limits)])
def test_each_is_positive_and_bounded(name: str) -> None:
    for value in (0, -1, MOST[name] * 2, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=name):
            Limits(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_the_largest_can_be_run_with(mode: str) -> None:
    # Open files apart: an operator's own hard limit may be lower.
    largest = {name: value for name, value in MOST.items() if name != "open_files"}
    with jailer(mode) as jails:
        result = jails.run(Command(("true",)), Limits(**largest))  # type: ignore[arg-type]
    assert result.ok, result
