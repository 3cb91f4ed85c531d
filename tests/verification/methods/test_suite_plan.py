"""The order of a suite's runs tells nothing, and what is run does not depend on the dice."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from shared.verification.methods.suite_plan import FEW, Planned, plan

SEED = b"a request"
DRAWS = 4000


def draw(
    number: int, *named: str, controls: int = 3, again: bool = True, controlled: int = 20
) -> list[Planned]:
    def controls_of(test: str, count: int) -> list[str]:
        return [f"{test} {n}" for n in range(count)]

    return plan(
        named, controls_of, controls=controls, controlled_tests=controlled, again=again, seed=SEED,
        dice=random.Random(number),
    )  # fmt: skip


def test_every_draw_has_the_same_runs() -> None:
    for named in (("a",), ("a", "b"), ("a", "b", "c", "d")):
        contents = {tuple(sorted(map(repr, draw(number, *named, controlled=2)))) for number in range(50)}
        orders = {tuple(draw(number, *named, controlled=2)) for number in range(50)}
        assert len(contents) == 1 and len(orders) > 40


@pytest.mark.parametrize(
    ("named", "more", "real", "controls"),
    [
        (("a",), {}, 2, 6), (("a", "a"), {}, 2, 6), (("a", "b"), {}, 4, 12), (("a", "b", "c"), {}, 3, 9), (("a",), {"again": False}, 1, 6),
        (("a",), {"controls": 0}, 1, 0), (("a", "b", "c"), {"controlled": 1}, 3, 3),
    ],
)  # fmt: skip
def test_how_much_is_run(named: tuple[str, ...], more: dict[str, int], real: int, controls: int) -> None:
    runs = draw(1, *named, **more)  # type: ignore[arg-type]
    assert [sum(run.control is None for run in runs), len(runs)] == [real, real + controls]


def paid(remembering: Callable[[list[Planned]], bool], *named: str) -> float:
    return sum(remembering(draw(number, *named)) for number in range(DRAWS)) / DRAWS


def takes_the_first_for_real(runs: list[Planned]) -> bool:
    """Remembers, of each test, what it saw first; passes that, and whatever is the same again."""
    first: dict[str, Planned] = {}
    return all(first.setdefault(run.test, run).control is None for run in runs)


def test_memory_from_one_run_to_the_next_seldom_pays() -> None:
    """A fixed order paid such code each time."""
    assert abs(paid(takes_the_first_for_real, "a") - 1 / 7) < 0.03
    assert abs(paid(takes_the_first_for_real, "a", "b") - 1 / 49) < 0.015
    assert abs(paid(takes_the_first_for_real, "a", "b", "c") - 1 / 64) < 0.01
    assert FEW == 2


def test_the_real_one_is_the_nth_new_one_as_often_as_any() -> None:
    for named in (("a",), ("a", "b"), ("a", "b", "c")):
        new = 4 if len(named) > FEW else 7
        places = [0] * new
        for number in range(DRAWS):
            seen = list(dict.fromkeys(run for run in draw(number, *named) if run.test == "a"))
            places[seen.index(Planned("a"))] += 1
        assert all(abs(count / DRAWS - 1 / new) < 0.03 for count in places), places


def test_counting_runs_pays_no_more_than_remembering_values() -> None:
    """Code that knows how many runs there were before, and fails all but those of two places."""
    pairs: dict[tuple[int, ...], int] = {}
    for number in range(DRAWS):
        real = tuple(place for place, run in enumerate(draw(number, "a")) if run.control is None)
        assert len(real) == 2
        pairs[real] = pairs.get(real, 0) + 1
    assert len(pairs) == 28 and max(pairs.values()) / DRAWS < 1 / 7 + 0.03
