"""Held-out instances are different questions, the same in every evaluation; where a domain has too few, that is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from services.scheduler.evaluations import RunningEvaluation
from services.scheduler.held_out import DRAWS_PER_WANTED, HeldOut, draw_held_out
from services.scheduler.seeds import held_out_seed
from shared.contracts import Evaluation
from shared.domains.base import Attempt, Difficulty, Domain, Draft, Instance, Judgement, TooFewQuestionsError
from shared.domains.draw import Draw
from shared.domains.registry import load_domain
from shared.settings import Settings
from temper.report.summary import build_summary
from temper.up.progress import Progress
from tests.scheduler.test_service import Others, scheduler

TWO_DIGITS = {"length": 2, "operation": "sort", "max_value": 9}
"""45 pairs, each asked in the one order that is not sorted; one in five is held out."""


@pytest.mark.parametrize(
    ("name", "difficulty", "wanted"),
    [
        ("sequences", {"length": 2, "operation": "sort", "max_value": 24}, 40),
        ("arithmetic", {"digits": 2, "operations": ["+"]}, 64),
        ("terminal", {}, 32),
    ],
)
def test_as_many_different_ones_as_are_wanted(name: str, difficulty: dict[str, Any], wanted: int) -> None:
    domain = load_domain(name)
    found = draw_held_out(domain, difficulty, wanted)
    asked = [domain.instance(held_out_seed(k), difficulty) for k in found.counters]
    assert len({(str(i.messages), str(i.files)) for i in asked}) == len(asked) == wanted
    assert found.shortage(name) == "" and found == draw_held_out(load_domain(name), difficulty, wanted)
    assert found.counters[0] == 0 and list(found.counters) == sorted(found.counters)


def test_too_few_are_asked_once_each_and_said() -> None:
    domain = load_domain("sequences")
    found = draw_held_out(domain, TWO_DIGITS, 40)
    everything = {domain.instance(held_out_seed(k), TWO_DIGITS).question() for k in range(2000)}
    assert len(found.counters) == len(everything) < 40 and found.draws == DRAWS_PER_WANTED * 40
    assert found.shortage("sequences") == (
        f"sequences: 40 held-out instances wanted, {len(everything)} different ones found in 800 draws: "
        "raise its difficulty or lower evaluation.instances_per_domain"
    )


class Rare(Domain[Difficulty]):
    """One draft in `every` is held out: many a seed finds none in its thousand drafts."""

    name = "rare"
    difficulty_model = Difficulty

    def __init__(self, every: int, held_out: str, training: str) -> None:
        self._every, self._texts = every, (held_out, training)

    def draft(self, draw: Draw, difficulty: Difficulty) -> Draft:
        return Draft(prompt=self._texts[draw.integer(1, self._every) > 1], expected="")

    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        raise NotImplementedError

    def oracle(self, instance: Instance) -> str:
        return ""

    def do_nothing(self, instance: Instance) -> str:
        return ""

    def near_misses(self, instance: Instance) -> tuple[()]:
        return ()


def texts_of_both_splits() -> tuple[str, str]:
    """(held out, training), as the split by content has it."""
    found: dict[bool, str] = {}
    for number in range(100):
        try:
            Rare(1, str(number), str(number)).instance(0)
        except TooFewQuestionsError:
            found[True] = str(number)
        else:
            found[False] = str(number)
    return found[True], found[False]


def test_a_split_that_is_hard_to_meet_gives_what_was_found_and_an_empty_one_is_refused() -> None:
    held_out, training = texts_of_both_splits()
    found = draw_held_out(Rare(500, held_out, training), {}, 8)
    assert len(found.counters) == 1 and found.draws < DRAWS_PER_WANTED * 8, "the first empty draw is the last"
    with pytest.raises(TooFewQuestionsError, match="found no held-out instance"):
        draw_held_out(Rare(500, training, training), {}, 8)


def test_the_note_is_told_once_by_the_run_and_once_by_its_report(
    make_settings: Callable[..., Settings],
) -> None:
    few = HeldOut((0, 3), 5, 100)
    evaluations = [
        RunningEvaluation(name, 0, step, 0, {"a": few}, 0.0, 9.0, 1).result("r", 1.0)
        for step, name in enumerate(("start", "0-rl-end"))
    ]
    progress = Progress(make_settings())
    first, second = (progress.observe(evaluation) or "" for evaluation in evaluations)
    assert few.shortage("a") in first and few.shortage("a") not in second
    assert build_summary("r", (), iter(evaluations), wall_seconds=1.0).notes == (few.shortage("a"),)


def test_every_evaluation_asks_the_same_ones_after_a_restart_too(
    make_settings: Callable[..., Settings],
) -> None:
    settings = make_settings(
        domains=[{"name": "sequences", "difficulty": TWO_DIGITS}],
        stages=[{"kind": "rl", "steps": 1, "groups_per_step": 2, "group_size": 2}],
        evaluation={"instances_per_domain": 40},
        scheduler={"max_lag": 0},
    )
    found = draw_held_out(load_domain("sequences"), TWO_DIGITS, 40)
    seeds, n = [held_out_seed(k) for k in found.counters], len(found.counters)

    async def body() -> None:
        others = Others(settings)
        async with scheduler(settings):
            await others.publish(0)
            await others.read_until(lambda: len(others.of("eval")) == n)
            for task in others.of("eval")[:2]:
                await others.reward(task)
        async with scheduler(settings) as running:
            for task in others.of("eval")[2:]:
                await others.reward(task)
            await others.read_until(lambda: len(others.of("train")) == 2)
            await others.train(others.of("train"))
            await others.read_until(lambda: len(others.of("eval")) == 2 * n)
            for task in others.of("eval")[n:]:
                await others.reward(task)
            await asyncio.wait_for(running, 20)
        asked = others.of("eval")
        assert sorted(t.domain.seed for t in asked[:n]) == sorted(t.domain.seed for t in asked[n:]) == seeds
        await others.read_until(lambda: sum(isinstance(m, Evaluation) for m in others.control) == 2)
        for result in (m for m in others.control if isinstance(m, Evaluation)):
            assert (result.domains["sequences"].count, result.notes) == (n, (found.shortage("sequences"),))
        await others.close()

    asyncio.run(body())
