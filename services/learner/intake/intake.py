"""The learner's intake as a state machine: records in, judged groups out, each resolved once.

Invariant: at any time a slot is pending, in a complete group, or resolved; resolution is final, releases the
group's records and books its tokens. The state that `to_state` returns, together with the records it still
needs, is the state itself: a restart from it goes on as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from services.learner.intake.attempts import Refusal, Terms
from services.learner.intake.groups import JudgedGroup, judge
from services.learner.intake.join import Arrival, Joined, OpenGroup
from services.learner.intake.ledger import Ledger
from services.learner.intake.offsets import OffsetBook, Place, Shard
from services.learner.intake.resolved import ResolvedGroups, numbered
from shared.contracts import Fate, GroupFate, Reward, Trajectory

REMEMBERED_EXPIRED = 4096
"""Groups given up before they were complete, whose late tokens are booked as expired; and as many with surplus."""
LONGEST_REASON = 200
"""Characters of a reason in the book; a fault's text may be of any length."""

Refused = tuple[str, int, str, Refusal]
"""(group, sample index, trajectory id, why)."""


class Intake:
    """`samples[i]` is the number of slots of a group of stage i, `enough[i]` of attempts that complete it (all)."""

    def __init__(
        self,
        run_id: str,
        samples: Sequence[int],
        state: Mapping[str, Any] | None = None,
        enough: Sequence[int] = (),
    ) -> None:
        self._run_id = run_id
        self._samples = tuple(samples)
        self._enough = tuple(enough) or self._samples
        self._open: dict[str, OpenGroup] = {}
        self._ready: dict[str, int] = {}
        self._judgements: dict[str, tuple[Terms, JudgedGroup]] = {}
        self._offsets = OffsetBook()
        self.duplicates = 0
        state = state or {}
        # Read while a checkpoint waited for its turn: after the step that it covers was booked, and before its offsets.
        unbooked = state.get("unbooked", {})
        self._fates = [GroupFate.model_validate(fate) for fate in unbooked.get("groups", ())]
        self.ledger = Ledger(unbooked.get("ledger"))
        self.resolved = ResolvedGroups.from_state(state["resolved"]) if state else ResolvedGroups()
        self._expired: dict[str, None] = dict.fromkeys(state.get("expired", ()))
        self._surplus: dict[str, list[int]] = dict(state.get("surplus", {}))
        """Slots that resolved groups did without."""
        self._chosen: dict[str, list[int]] = dict(state.get("chosen", {}))
        """Slots with which groups were complete when the checkpoint was made, where those are not all."""
        self._closed_before: int = state.get("closed_before", 0)
        self._ranks: dict[str, int] = {group: rank for rank, group in enumerate(state.get("ready", ()))}
        self._next_rank = len(self._ranks)

    # Records in

    def trajectory(self, arrival: Arrival[Trajectory]) -> Joined:
        """Takes an attempt of this run's training. The caller has left out other runs and purposes."""
        trajectory = arrival.message
        if self.misplaced(trajectory):
            self.ledger.book("invalid", [trajectory])
            return "invalid"
        group = self._group_of(trajectory.slot.group_id, trajectory.stage_index)
        if group is None:
            self._late(trajectory)
            return "duplicate"
        joined = group.add_trajectory(arrival)
        if joined == "surplus":
            self.ledger.book("surplus", [trajectory])
            return joined
        self._joined(group, joined, arrival.place, trajectory.slot.sample_index)
        if joined == "duplicate":
            self._late(trajectory)
        self._close_if_past(group)
        return joined

    def reward(self, arrival: Arrival[Reward]) -> Joined:
        reward = arrival.message
        if self.misplaced(reward):
            return "invalid"
        group = self._group_of(reward.slot.group_id, reward.stage_index)
        if group is None:
            return "duplicate"
        joined = group.add_reward(arrival)
        self._joined(group, joined, arrival.place, reward.slot.sample_index)
        self._close_if_past(group)
        return joined

    def misplaced(self, message: Trajectory | Reward) -> str:
        """Why the run has no such slot; empty where it has it."""
        stage, slot = message.stage_index, message.slot
        if not 0 <= stage < len(self._samples):
            return f"stage {stage}: the run has stages 0 to {len(self._samples) - 1}"
        place = numbered(slot.group_id)
        if place is not None and place[0].split("-", 1)[0] != str(stage):
            return f"group {slot.group_id} is of another stage than {stage}"
        if slot.sample_index >= self._samples[stage]:
            return f"sample {slot.sample_index}: a group of stage {stage} has {self._samples[stage]}"
        return ""

    def abandon(self, groups: Iterable[str]) -> list[GroupFate]:
        """Gives up groups that are not complete. A complete one is kept: its work is done."""
        given_up = []
        for group_id in groups:
            place = numbered(group_id)
            if group_id in self.resolved or group_id in self._ready or place is None:
                continue
            stage_index = int(place[0].split("-", 1)[0])
            group = self._group_of(group_id, stage_index)
            if group is not None:
                given_up.append(self._expire(group))
        return given_up

    def close_stage(self, stage_index: int) -> list[GroupFate]:
        """Expires every group of this stage and of earlier ones, those that are yet to arrive included."""
        self._closed_before = max(self._closed_before, stage_index + 1)
        past = [group for group in self._open.values() if group.stage_index <= stage_index]
        return [self._expire(group) for group in past]

    # Groups out

    def review(
        self, stage_index: int, terms: Terms
    ) -> tuple[list[GroupFate], list[Refused], list[JudgedGroup]]:
        """Resolves every complete group of the stage that can take no place in a batch; says which and why."""
        fates: list[GroupFate] = []
        refused: list[Refused] = []
        out = [judged for judged in self._judged(stage_index, terms) if not judged.counts(terms)]
        for judged in out:
            fates.append(self.settle(judged))
            refused += named_refusals(judged)
        return fates, refused, out

    def batch(self, stage_index: int, terms: Terms, groups: int) -> list[JudgedGroup] | None:
        """The first `groups` complete groups that count, in order of completion; None while there are fewer."""
        counted = self.counted(stage_index, terms)
        return counted[:groups] if len(counted) >= groups else None

    def named(self, group_ids: Iterable[str], terms: Terms) -> list[JudgedGroup]:
        """These groups, whether or not they count. Raises `KeyError` for one that is not here."""
        return [self._judge(self._open[group_id], terms) for group_id in group_ids]

    def counted(self, stage_index: int, terms: Terms) -> list[JudgedGroup]:
        return [judged for judged in self._judged(stage_index, terms) if judged.counts(terms)]

    def settle(self, judged: JudgedGroup, *, dropped: bool = False) -> GroupFate:
        """Resolves a group as it was judged; `dropped`: in a batch whose gradient the guard did not let pass."""
        silence = "" if judged.silence is None else judged.silence.reason
        return self.resolve(judged.group_id, judged.fates(dropped), judged.reasons(), silence)

    def resolve(
        self,
        group_id: str,
        fates: Mapping[int, Fate],
        reasons: Mapping[int, str] | None = None,
        silence: str = "",
    ) -> GroupFate:
        """Resolves a group: final. Halves that never met share the fate of their slot, and slots that a complete
        group did without are surplus."""
        group = self._open.pop(group_id)
        without = [index for index in range(group.size) if index not in fates]
        if without:
            fates = {**fates, **dict.fromkeys(without, "surplus")}
            self._surplus[group_id] = without
            _forget(self._surplus)
        self._ready.pop(group_id, None)
        self._ranks.pop(group_id, None)
        self._judgements.pop(group_id, None)
        self.resolved.add(group_id)
        self._offsets.release(group.places())
        fate = self._book(group, fates)
        if reasons:
            told = tuple(reasons.get(index, "")[:LONGEST_REASON] for index in fate.samples)
            fate = fate.model_copy(update={"reasons": told})
        if silence:
            fate = fate.model_copy(update={"silence": silence})
        self._fates.append(fate)
        return fate

    def take_fates(self) -> tuple[GroupFate, ...]:
        """Every group resolved since the last call: the next Step's book."""
        fates, self._fates = tuple(self._fates), []
        return fates

    # Facts

    @property
    def buffered(self) -> int:
        return len(self._open)

    def waiting(self) -> tuple[int, int]:
        """(attempts that wait for their reward, rewards that wait for their attempt)."""
        groups = self._open.values()
        return sum(len(g.trajectories) for g in groups), sum(len(g.rewards) for g in groups)

    def to_state(self, positions: Mapping[Shard, int]) -> dict[str, Any]:
        """JSON. `positions`: the next offset to read of every shard, with everything before it fed in here."""
        return {
            "resolved": self.resolved.to_state(),
            "expired": list(self._expired),
            "surplus": dict(self._surplus),
            "chosen": self._choices(),
            "closed_before": self._closed_before,
            "ready": sorted(self._ready, key=self._ready.__getitem__),
            "offsets": self._offsets.to_state(positions),
            "unbooked": {
                "groups": [fate.model_dump(mode="json", exclude_defaults=True) for fate in self._fates],
                "ledger": self.ledger.to_state(),
            },
        }

    # Inside

    def _group_of(self, group_id: str, stage_index: int) -> OpenGroup | None:
        if group_id in self.resolved or not 0 <= stage_index < len(self._samples):
            return None  # the stage is asked about for a word that gives a group up
        group = self._open.get(group_id)
        if group is None:
            group = self._open[group_id] = OpenGroup(
                group_id,
                stage_index,
                self._samples[stage_index],
                self._enough[stage_index],
                frozenset(self._chosen.pop(group_id, ())),
            )
        return group

    def _joined(self, group: OpenGroup, joined: Joined, place: Place, sample_index: int) -> None:
        if joined in {"repeated", "duplicate", "surplus"}:
            return
        self._offsets.hold(place)
        if joined == "waits":
            return
        for attempt in self._losers(group, sample_index):
            self._late(attempt.message)
        if joined == "completed":
            for index in set(range(group.size)) - group.slots.keys():
                self.ledger.book("surplus", [half.message for half in self._losers(group, index)])
            rank = self._ranks.pop(group.group_id, None)
            if rank is None:
                rank, self._next_rank = self._next_rank, self._next_rank + 1
            self._ready[group.group_id] = rank

    def _losers(self, group: OpenGroup, sample_index: int) -> list[Arrival[Trajectory]]:
        late, unheard = group.losers(sample_index)
        self._offsets.release([attempt.place for attempt in late])
        self._offsets.release([verdict.place for verdict in unheard])
        return late

    def _choices(self) -> dict[str, list[int]]:
        """Of complete groups that do without some of their slots. A group is complete again with these: in another
        order its records would make another choice."""
        groups = [self._open[group_id] for group_id in self._ready]
        return {g.group_id: sorted(g.slots) for g in groups if len(g.slots) < g.size}

    def _late(self, trajectory: Trajectory) -> None:
        group_id = trajectory.slot.group_id
        fate: Fate = "expired" if group_id in self._expired else "duplicate"
        if trajectory.slot.sample_index in self._surplus.get(group_id, ()):
            fate = "surplus"
        self.duplicates += fate == "duplicate"
        self.ledger.book(fate, [trajectory])

    def _judged(self, stage_index: int, terms: Terms) -> list[JudgedGroup]:
        order = sorted(self._ready, key=self._ready.__getitem__)
        groups = [self._open[group_id] for group_id in order]
        return [self._judge(group, terms) for group in groups if group.stage_index == stage_index]

    def _judge(self, group: OpenGroup, terms: Terms) -> JudgedGroup:
        known = self._judgements.get(group.group_id)
        if known is None or known[0] is not terms:
            known = self._judgements[group.group_id] = terms, judge(group.group_id, group.slots, terms)
        return known[1]

    def _close_if_past(self, group: OpenGroup) -> None:
        if group.stage_index < self._closed_before:
            self._expire(group)

    def _expire(self, group: OpenGroup) -> GroupFate:
        self._expired[group.group_id] = None
        _forget(self._expired)
        return self.resolve(group.group_id, dict.fromkeys(range(group.size), "expired"))

    def _book(self, group: OpenGroup, fates: Mapping[int, Fate]) -> GroupFate:
        halves = {a.message.slot.sample_index: a for a in reversed(list(group.trajectories.values()))}
        domain, ids, traces = "", [], []
        for index in sorted(fates):
            slot, half = group.slots.get(index), halves.get(index)
            attempt = slot.trajectory if slot else half.message if half else None
            ids.append(attempt.trajectory_id if attempt else "")
            traces.append(slot.traceparent if slot else half.traceparent if half else "")
            if attempt is not None:
                domain = domain or attempt.domain.name
                self.ledger.book(fates[index], [attempt])
        unmet = [a.message for a in group.trajectories.values() if a.message.trajectory_id not in ids]
        self.ledger.book("duplicate", unmet)
        return GroupFate(
            group_id=group.group_id,
            domain=domain,
            samples=tuple(sorted(fates)),
            fates=tuple(fates[index] for index in sorted(fates)),
            trajectory_ids=tuple(ids),
            traceparents=tuple(traces),
        )


def _forget(remembered: dict[str, Any]) -> None:
    """The oldest, where there are too many."""
    while len(remembered) > REMEMBERED_EXPIRED:
        del remembered[next(iter(remembered))]


def named_refusals(judged: JudgedGroup) -> list[Refused]:
    """(group, sample, trajectory id, why) of every refused attempt; what is surplus was not refused."""
    return [
        (judged.group_id, index, judged.slots[index].trajectory.trajectory_id, refusal)
        for index, refusal in judged.refusals.items()
        if refusal.fate != "surplus"
    ]
