"""Every kind of bad record on a real broker: named, dropped with its cause or kept as a dead letter, never trained on.

The run with bad records must end with the very weights of a run whose slots were faults instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from bad_records import BAD, DEFECTS, GROUP_SIZE, MISPLACED, UNREADABLE, Unreadable, fault, good, raw
from learner_builders import reward
from learner_world import World, steps, with_learner

from shared.bus.dead_book import find_letters
from shared.contracts import Heartbeat, Policy, Step
from shared.settings import Settings

GROUPS = len(DEFECTS) + len(UNREADABLE)
SAMPLED = 2
"""Tokens of a good attempt."""


def name_of(index: int) -> str:
    return f"0-rl-{index:07d}"


async def send_good(world: World, group: str, values: tuple[float, ...] = (0.0, 1.0)) -> None:
    for sample, value in enumerate(values):
        await world.attempt(good(group, sample), value)


async def clean(world: World) -> None:
    for index in range(GROUPS):
        await send_good(world, name_of(index))
        await world.attempt(fault(name_of(index)))


async def spoilt(world: World) -> None:
    run_id = world.settings.run.name
    for made, _ in MISPLACED:
        await world.attempt(made, 1.0)
    for index, defect in enumerate(DEFECTS):
        await send_good(world, name_of(index))
        made = defect.spoil(name_of(index))
        await world.attempt(made)
        paid = None if defect.verdict != "passed" else 1.0
        word = reward(made, paid, verdict=defect.verdict, reason="the checker broke")
        slot = word.slot.model_copy(update={"run_id": run_id})
        await world.producer.send(world.names.rewards, word.model_copy(update={"slot": slot}))
    for index, unreadable in enumerate(UNREADABLE, start=len(DEFECTS)):
        await send_good(world, name_of(index))
        await send_unreadable(world, unreadable, name_of(index))
        await world.attempt(fault(name_of(index)))  # the group comes again, as the scheduler would have it


async def send_unreadable(world: World, defect: Unreadable, group: str) -> None:
    body, headers, made = raw(defect, group, world.settings.run.name)
    if defect.of == "reward":
        await world.attempt(made)
        topic = world.names.rewards
    else:
        topic = world.names.trajectories("single_turn", "normal")
    await world.producer.send_raw(topic, group.encode(), body, headers)


def after_one_step(send: Callable[[World], Awaitable[None]]) -> Callable[[World], Awaitable[None]]:
    async def script(world: World) -> None:
        await world.until(lambda seen: any(isinstance(m, Policy) for m in seen), "version 0")
        await send(world)
        await world.until(lambda seen: 1 in steps(seen), "the step", 40)

    return script


@pytest.fixture(scope="module")
def told() -> dict[str, tuple[World, Settings]]:
    return {}


@pytest.fixture
def runs(
    told: dict[str, tuple[World, Settings]], learner_settings: Callable[..., Settings]
) -> dict[str, tuple[World, Settings]]:
    """Both runs, once for all tests here."""
    if not told:
        stage = {
            "kind": "rl", "steps": 1, "groups_per_step": GROUPS, "group_size": GROUP_SIZE, "learning_rate": 1e-2,
        }  # fmt: skip
        for name, send in (("clean", clean), ("spoilt", spoilt)):
            # One partition: the order in which groups are complete is that in which they were sent.
            settings = learner_settings(stages=[stage], bus={"partitions": 1}, telemetry={"heartbeat_s": 0.1})
            told[name] = asyncio.run(with_learner(settings, after_one_step(send))), settings
    return told


def step_of(world: World) -> Step:
    (found,) = world.of(Step)
    return found


def test_the_weights_are_those_of_a_run_without_the_bad_records(
    runs: dict[str, tuple[World, Settings]],
) -> None:
    digests = [
        [policy.weights.sha256 for policy in world.of(Policy) if policy.version == 1]
        for world, _ in runs.values()
    ]
    assert digests[0] == digests[1] and len(digests[0]) == 1
    steps = [step_of(world) for world, _ in runs.values()]
    assert steps[0].loss == steps[1].loss and steps[0].gradient_norm == steps[1].gradient_norm > 0
    assert {step.trained_trajectories for step in steps} == {2 * GROUPS}


@pytest.mark.parametrize("index", range(len(DEFECTS)), ids=[defect.name for defect in DEFECTS])
def test_the_book_says_what_became_of_it_and_why(runs: dict[str, tuple[World, Settings]], index: int) -> None:
    defect, group = DEFECTS[index], step_of(runs["spoilt"][0]).groups[index]
    assert group.group_id == name_of(index)
    assert group.fates == ("trained", "trained", defect.fate)
    assert group.reasons[:BAD] == ("", "") and defect.words in group.reasons[BAD]
    assert group.trajectory_ids[BAD] == f"{group.group_id}/{BAD}/1"


def test_a_note_of_the_step_names_them_for_people(runs: dict[str, tuple[World, Settings]]) -> None:
    count = sum(defect.fate == "invalid" for defect in DEFECTS)
    (note,) = step_of(runs["spoilt"][0]).notes
    assert note.startswith(
        f"{count} invalid attempts, not trained on: {name_of(0)}/{BAD}/1: log-probability nan"
    )
    assert note.endswith(f"and {count - 5} more")
    assert step_of(runs["clean"][0]).notes == ()


@pytest.mark.parametrize("index", range(len(UNREADABLE)), ids=[defect.name for defect in UNREADABLE])
def test_what_the_contract_refuses_is_a_dead_letter_as_it_was(
    runs: dict[str, tuple[World, Settings]], index: int
) -> None:
    world, settings = runs["spoilt"]
    defect, group = UNREADABLE[index], name_of(len(DEFECTS) + index)
    body, _, _ = raw(defect, group, settings.run.name)
    (letter,) = [letter for letter in find_letters(settings, "learner") if letter.record.value == body]
    assert letter.error_type in {"ContractError", "UnknownVersionError"}
    assert defect.words in letter.error_message
    (booked,) = [booked for booked in step_of(world).groups if booked.group_id == group]
    assert booked.fates == ("trained", "trained", "faulted")
    assert booked.trajectory_ids[BAD] != f"{group}/spoilt"


def test_what_nothing_can_be_learnt_from_is_a_dead_letter_too(
    runs: dict[str, tuple[World, Settings]],
) -> None:
    _, settings = runs["spoilt"]
    letters = [letter.error_message for letter in find_letters(settings, "learner")]
    wanted = [(name_of(i), d.words) for i, d in enumerate(DEFECTS) if d.letter]
    wanted += [(made.trajectory_id, words) for made, words in MISPLACED for _ in ("attempt", "reward")]
    for trajectory, words in wanted:
        found = [letter for letter in letters if trajectory in letter and words in letter]
        assert found, (trajectory, words)
    assert len(letters) == len(wanted) + len(UNREADABLE)
    assert find_letters(runs["clean"][1], "learner") == []


def test_every_sampled_token_is_booked_to_its_cause(runs: dict[str, tuple[World, Settings]]) -> None:
    step = step_of(runs["spoilt"][0])
    sampled = {
        fate: sum(d.spoil(name_of(0)).sampled_tokens() for d in DEFECTS if d.fate == fate)
        for fate in ("invalid", "over_length", "faulted", "unverifiable", "surplus")
    }
    # Three spoilt rewards left attempts that were never judged: another attempt took their slot.
    unjudged = sum(defect.of == "reward" for defect in UNREADABLE)
    assert step.tokens == {
        "trained": 2 * SAMPLED * GROUPS,
        **sampled,
        "invalid": sampled["invalid"] + sum(made.sampled_tokens() for made, _ in MISPLACED),
        "duplicate": SAMPLED * unjudged,
    }
    assert step.trained_tokens == step.tokens["trained"]
    total = step.seconds["total"]
    assert step.effective_throughput == pytest.approx(step.trained_trajectories / total) and total > 0


def test_the_heartbeat_counts_them(runs: dict[str, tuple[World, Settings]]) -> None:
    wanted = sum(defect.letter for defect in DEFECTS) + 2 * len(MISPLACED)
    for name, count in (("spoilt", wanted), ("clean", 0)):
        beats = [beat for beat in runs[name][0].of(Heartbeat) if "invalid" in beat.gauges]
        assert max(beat.gauges["invalid"] for beat in beats) == count
