"""Property: whatever the order, the duplicates and the crashes, the surviving lineage is that of a quiet run."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from learner_builders import RUN, reward, trajectory

from services.learner.intake.attempts import Terms
from services.learner.intake.intake import Intake
from services.learner.intake.join import Arrival
from services.learner.intake.offsets import Place, ReplayGate, Shard
from services.learner.objectives.presets import preset
from shared.contracts import GroupFate, Reward, Trajectory

ENOUGH, GROUPS_PER_STEP = 2, 2
FAULTED = 0.2
GRPO, DAPO = preset("grpo"), preset("dapo")
Record = tuple[Place, Trajectory | Reward]


@dataclass
class Checkpoint:
    steps: list[tuple[tuple[GroupFate, ...], dict[str, int]]] = field(default_factory=list)
    state: dict[str, Any] | None = None


def topic_contents(
    draw: random.Random, groups: int, partitions: int, group_size: int = ENOUGH
) -> list[Record]:
    """Records in the order in which they are appended: two attempts for some slots, some repeated."""
    pieces: list[tuple[str, Trajectory | Reward]] = []
    for index in range(groups):
        group = f"0-rl-{index:07d}"
        for sample in range(group_size):
            for attempt in range(1, 2 + (draw.random() < 0.5)):
                made = trajectory(group, sample, name=f"{group}/{sample}/{attempt}")
                verdict = reward(made, draw.choice((0.0, 1.0)))
                if group_size > ENOUGH and draw.random() < FAULTED:
                    verdict = reward(made, None, verdict="infrastructure")
                pieces += [("trajectories", made), ("rewards", verdict)]
                if draw.random() < 0.2:
                    pieces.append(draw.choice(pieces[-2:]))
    draw.shuffle(pieces)
    ends: Counter[Shard] = Counter()
    records = []
    for topic, message in pieces:
        shard = (topic, draw.randrange(partitions))
        records.append((Place(*shard, ends[shard]), message))
        ends[shard] += 1
    return records


class Learner:
    """The intake with a gate in front and steps behind, as the service runs them, without a model."""

    def __init__(self, checkpoint: Checkpoint, dynamic: bool, group_size: int = ENOUGH) -> None:
        self.steps = list(checkpoint.steps)
        self.intake = Intake(RUN, [group_size], checkpoint.state, [ENOUGH])
        self.gate = ReplayGate(checkpoint.state["offsets"] if checkpoint.state else ())
        self.positions: dict[Shard, int] = {
            (entry["topic"], entry["partition"]): entry["next"]
            for entry in (checkpoint.state["offsets"] if checkpoint.state else ())
        }
        self.waiting: list[Record] = []
        objective = DAPO if dynamic else GRPO
        self.terms = Terms(objective, vocabulary=32, max_tokens=64, version=0, max_lag=10)

    def read(self, record: Record) -> None:
        admission = self.gate.admit(record[0])
        if admission == "new":
            self.waiting.append(record)
        elif admission == "replayed":
            self.feed(record)
        if self.gate.open:
            for kept in self.waiting:
                self.feed(kept)
            self.waiting.clear()

    def feed(self, record: Record) -> None:
        place, message = record
        if isinstance(message, Trajectory):
            self.intake.trajectory(Arrival(message, place))
        else:
            self.intake.reward(Arrival(message, place))
        self.positions[place.shard] = max(self.positions.get(place.shard, 0), place.offset + 1)

    def step(self) -> bool:
        if not self.gate.open:
            return False
        self.intake.review(0, self.terms)
        batch = self.intake.batch(0, self.terms, GROUPS_PER_STEP)
        if batch is None:
            return False
        for judged in batch:
            self.intake.resolve(judged.group_id, judged.fates())
        self.steps.append((self.intake.take_fates(), self.intake.ledger.take()[0]))
        return True

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(list(self.steps), self.intake.to_state(self.positions))


def quiet_run(records: list[Record], dynamic: bool, group_size: int = ENOUGH) -> Learner:
    learner = Learner(Checkpoint(), dynamic, group_size)
    for record in records:
        learner.read(record)
        while learner.step():
            pass
    return learner


def reading_order(draw: random.Random, records: list[Record], learner: Learner) -> list[Record]:
    """What a reader that seeks returns: replays of different shards in any order, new records as appended."""
    start, known = learner.gate.start(), dict(learner.positions)
    again: dict[Shard, list[Record]] = {}
    new = []
    for place, message in records:
        if place.offset >= known.get(place.shard, 0):
            new.append((place, message))
        elif place.offset >= start[place.shard]:
            again.setdefault(place.shard, []).append((place, message))
    order = []
    while again:
        shard = draw.choice(sorted(again))
        order.append(again[shard].pop(0))
        if not again[shard]:
            del again[shard]
    early, merged = new[: draw.randint(0, len(new))], []
    late = new[len(early) :]
    while order or early:  # new records that come early meet a closed gate
        merged.append(draw.choice([source for source in (order, early) if source]).pop(0))
    return merged + late


def crashing_run(
    draw: random.Random, records: list[Record], dynamic: bool, group_size: int = ENOUGH
) -> Learner:
    durable = Checkpoint()
    for _ in range(draw.randint(1, 6)):
        learner = Learner(durable, dynamic, group_size)
        for record in reading_order(draw, records, learner)[: draw.randint(0, len(records))]:
            learner.read(record)
            while learner.step():
                if draw.random() < 0.7:
                    durable = learner.checkpoint()
                if draw.random() < 0.2:
                    break
    last = Learner(durable, dynamic, group_size)
    while last.step():
        pass
    for record in reading_order(draw, records, last):
        last.read(record)
        while last.step():
            pass
    return last


def training(learner: Learner) -> list[tuple[list[GroupFate], int]]:
    """What each step trained on. How far a learner reads ahead of a step is chance, and moves only which step
    books a dropped group and whether a record that is delivered twice is seen before its group is resolved."""
    return [
        ([fate for fate in fates if "trained" in fate.fates], tokens.get("trained", 0))
        for fates, tokens in learner.steps
    ]


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32), dynamic=st.booleans(), oversample=st.integers(0, 2))
def test_crashes_change_nothing(seed: int, dynamic: bool, oversample: int) -> None:
    draw = random.Random(seed)
    size = ENOUGH + oversample
    records = topic_contents(draw, groups=draw.randint(1, 8), partitions=draw.randint(1, 3), group_size=size)
    quiet = quiet_run(records, dynamic, size)
    stormy = crashing_run(draw, records, dynamic, size)
    assert training(stormy) == training(quiet)
    slots = Counter(
        (fate.group_id, sample) for fates, _ in stormy.steps for fate in fates for sample in fate.samples
    )
    assert all(times == 1 for times in slots.values())
    states = [learner.intake.to_state(learner.positions) for learner in (stormy, quiet)]
    unbooked = [state.pop("unbooked")["groups"] for state in states]
    assert states[0] == states[1]
    resolved = [
        sorted(
            [fate.group_id for fates, _ in learner.steps for fate in fates]
            + [fate["group_id"] for fate in rest]
        )
        for learner, rest in zip((stormy, quiet), unbooked, strict=True)
    ]
    assert resolved[0] == resolved[1], "a resolved group is in a step's book, or will be in the next one's"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_order_resolves_every_group_once(seed: int) -> None:
    draw = random.Random(seed)
    groups = draw.randint(1, 8)
    learner = quiet_run(topic_contents(draw, groups, partitions=2), dynamic=False)
    booked = [fate.group_id for fates, _ in learner.steps for fate in fates]
    assert len(booked) == len(set(booked))
    assert len(booked) + learner.intake.buffered == groups
    assert learner.intake.waiting() == (0, 0)
