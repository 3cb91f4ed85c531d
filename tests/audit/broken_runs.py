"""What can go wrong with a run: each takes a clean one and breaks one promise."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from temper.audit.facts import DeadFact, RunFacts, TaskFact
from temper.audit.lineage import surviving

Injection = Callable[[RunFacts, random.Random], RunFacts | None]
"""None where this run has no place for it."""


def _trained(facts: RunFacts) -> list[tuple[int, int, int]]:
    """(step position, group position, slot position) of every trained slot that survives."""
    kept = {id(step) for step in surviving(facts.steps)}
    return [
        (s, g, i)
        for s, step in enumerate(facts.steps[:-1])
        if id(step) in kept
        for g, group in enumerate(step.groups)
        for i, fate in enumerate(group.fates)
        if fate == "trained"
    ]


def _with_step(facts: RunFacts, at: int, **changes: object) -> RunFacts:
    """The last record repeats the last step: it is changed too, or it would be another lineage."""
    steps = list(facts.steps)
    number = steps[at].step
    for position, step in enumerate(steps):
        if step.step == number:
            steps[position] = step.model_copy(update=changes)
    return replace(facts, steps=tuple(steps))


def _some_attempt(facts: RunFacts, rng: random.Random) -> str | None:
    places = _trained(facts)
    if not places:
        return None
    s, g, i = rng.choice(places)
    return facts.steps[s].groups[g].trajectory_ids[i]


def _attempt_changed(**changes: object) -> Injection:
    def inject(facts: RunFacts, rng: random.Random) -> RunFacts | None:
        wanted = _some_attempt(facts, rng)
        attempts = tuple(replace(a, **changes) if a.trajectory_id == wanted else a for a in facts.attempts)
        return None if wanted is None else replace(facts, attempts=attempts)

    return inject


def _reward_changed(**changes: object) -> Injection:
    def inject(facts: RunFacts, rng: random.Random) -> RunFacts | None:
        wanted = _some_attempt(facts, rng)
        rewards = tuple(replace(r, **changes) if r.trajectory_id == wanted else r for r in facts.rewards)
        return None if wanted is None else replace(facts, rewards=rewards)

    return inject


def _trained_again(facts: RunFacts, rng: random.Random) -> RunFacts | None:
    earlier = [place for place in _trained(facts) if facts.steps[place[0]].step < facts.steps[-1].step]
    if not earlier:
        return None
    s, g, _ = rng.choice(earlier)
    later = facts.steps[-1]
    again = (*later.groups, facts.steps[s].groups[g])
    return _with_step(facts, len(facts.steps) - 1, groups=again)


def _dropped_again(facts: RunFacts, rng: random.Random) -> RunFacts | None:
    places = _trained(facts)
    if not places:
        return None
    s, g, _ = rng.choice(places)
    step = facts.steps[s]
    fates = ("stale",) * len(step.groups[g].fates)
    return _with_step(facts, s, groups=(*step.groups, step.groups[g].model_copy(update={"fates": fates})))


def _task_gone(facts: RunFacts, rng: random.Random) -> RunFacts | None:
    places = _trained(facts)
    if not places:
        return None
    s, g, _ = rng.choice(places)
    gone = facts.steps[s].groups[g].group_id
    return replace(facts, tasks=tuple(task for task in facts.tasks if task.group_id != gone))


def _without_attempt(facts: RunFacts, rng: random.Random) -> RunFacts | None:
    wanted = _some_attempt(facts, rng)
    if wanted is None:
        return None
    return replace(facts, attempts=tuple(a for a in facts.attempts if a.trajectory_id != wanted))


def _without_reward(facts: RunFacts, rng: random.Random) -> RunFacts | None:
    wanted = _some_attempt(facts, rng)
    if wanted is None:
        return None
    return replace(facts, rewards=tuple(r for r in facts.rewards if r.trajectory_id != wanted))


def _step_gone(facts: RunFacts, rng: random.Random) -> RunFacts | None:
    numbers = sorted({step.step for step in facts.steps})[1:-1]
    if not numbers:
        return None
    gone = rng.choice(numbers)
    return replace(facts, steps=tuple(step for step in facts.steps if step.step != gone))


def _checkpoint_gone(facts: RunFacts, rng: random.Random) -> RunFacts:
    gone = rng.choice(facts.policies).checkpoint
    return replace(facts, checkpoints=tuple(c for c in facts.checkpoints if c.key != gone))


def _checkpoint_torn(facts: RunFacts, rng: random.Random) -> RunFacts:
    torn = rng.choice(facts.policies).checkpoint
    broken = tuple(replace(c, problem="no manifest") if c.key == torn else c for c in facts.checkpoints)
    return replace(facts, checkpoints=broken)


def _step_without_checkpoint(facts: RunFacts, rng: random.Random) -> RunFacts | None:
    last = facts.steps[-1]
    kept = tuple(c for c in facts.checkpoints if c.step < last.step)
    policies = tuple(p for p in facts.policies if p.step < last.step)
    return replace(facts, checkpoints=kept, policies=policies)


def _digest_changed(facts: RunFacts, rng: random.Random) -> RunFacts:
    again = replace(rng.choice(facts.policies), digest="f" * 64)
    return replace(facts, policies=(*facts.policies, again))


def _newest_checkpoint(**changes: object) -> Injection:
    def inject(facts: RunFacts, rng: random.Random) -> RunFacts:
        newest = max(facts.checkpoints, key=lambda c: c.step)
        changed = tuple(replace(c, **changes) if c == newest else c for c in facts.checkpoints)
        return replace(facts, checkpoints=changed)

    return inject


def _group_forgotten(facts: RunFacts, rng: random.Random) -> RunFacts:
    """A restart would take the group's records as new, and train it again."""
    booked = [group.group_id for step in surviving(facts.steps) for group in step.groups]
    return replace(facts, remembered=set(booked) - {rng.choice(booked)})


def _span_gone(facts: RunFacts, rng: random.Random) -> RunFacts | None:
    spans = facts.spans or ()
    parents = {span.parent_span_id for span in spans}
    inner = [span for span in spans if span.span_id in parents]
    if not inner:
        return None
    gone = rng.choice(inner)
    return replace(facts, spans=tuple(span for span in spans if span is not gone))


def _spans_without(name: str) -> Injection:
    def inject(facts: RunFacts, rng: random.Random) -> RunFacts | None:
        if not _trained(facts):
            return None
        return replace(facts, spans=tuple(span for span in facts.spans or () if span.name != name))

    return inject


def _context_lost(facts: RunFacts, rng: random.Random) -> RunFacts | None:
    inner = [span for span in facts.spans or () if span.parent_span_id]
    if not inner:
        return None
    lost = rng.choice(inner)
    spans = tuple(replace(s, parent_span_id="") if s is lost else s for s in facts.spans or ())
    return replace(facts, spans=spans)


def _task_swallowed(facts: RunFacts, rng: random.Random) -> RunFacts:
    """Its offset is committed, and nothing came of it."""
    buried = {letter.origin for letter in facts.dead}
    tasks = tuple(replace(task, finished=task.position not in buried) for task in facts.tasks)
    return replace(facts, tasks=tasks)


def _reward_swallowed(facts: RunFacts, rng: random.Random) -> RunFacts:
    """The verifier committed an attempt of a group that is not resolved, and gave no reward."""
    resolved = {group.group_id for step in surviving(facts.steps) for group in step.groups}
    resolved |= {group.group_id for notice in facts.notices for group in notice.groups}
    kept = tuple(reward for reward in facts.rewards if reward.slot[0] in resolved)
    return replace(facts, rewards=kept)


INJECTIONS: dict[str, tuple[str, Injection]] = {
    "a group trained in two steps": ("trained twice", _trained_again),
    "a slot trained and dropped": ("booked twice", _dropped_again),
    "a task that rollout swallowed": ("lost", _task_swallowed),
    "an attempt that the verifier swallowed": ("lost", _reward_swallowed),
    "a booked slot that no task has": ("never scheduled", _task_gone),
    "a trained trajectory that is in no topic": ("trained without a trajectory", _without_attempt),
    "a trained trajectory without a reward": ("trained without a reward", _without_reward),
    "an unverifiable verdict trained": ("trained without a reward", _reward_changed(verdict="unverifiable", reward=None)),
    "an infrastructure fault trained": ("trained on a fault", _reward_changed(verdict="infrastructure", reward=None)),
    "a verifier's timeout trained": ("trained on a fault", _reward_changed(verdict="timeout_infra", reward=None)),
    "no attempt was made": ("trained on a fault", _attempt_changed(infrastructure=True)),
    "an evaluation trained": ("trained on an evaluation", _attempt_changed(purpose="eval")),
    "a trajectory of another slot": ("wrong slot", _attempt_changed(slot=("0-rl-0000000", 99))),
    "more tokens than were booked": ("ledger", _attempt_changed(sampled_tokens=1000)),
    "tokens that were lost": ("ledger", lambda f, r: _with_step(f, 0, tokens={})),
    "tokens of a fate that nothing had": (
        "ledger",
        lambda f, r: _with_step(f, 0, tokens={**f.steps[0].tokens, "over_length": 3}),
    ),
    "more duplicates than were sampled": (
        "ledger",
        lambda f, r: _with_step(f, 0, tokens={**f.steps[0].tokens, "duplicate": 10**6}),
    ),
    "a count that is wrong": ("ledger", lambda f, r: _with_step(f, 0, trained_trajectories=1000)),
    "a missing step": ("steps not contiguous", _step_gone),
    "a policy without a checkpoint": ("not durable", _checkpoint_gone),
    "a policy with a torn checkpoint": ("not durable", _checkpoint_torn),
    "a step before its checkpoint": ("not durable", _step_without_checkpoint),
    "a version with two digests": ("version repeated", _digest_changed),
    "weights that hash to something else": ("damaged checkpoint", _newest_checkpoint(damaged=("hashes to 0",))),
    "the newest weights gone": ("not durable", _newest_checkpoint(pruned=("weights.safetensors",))),
    "other weights in the checkpoint": ("not durable", _newest_checkpoint(weights_digest="e" * 64)),
    "a checkpoint that forgot a booked group": ("forgotten", _group_forgotten),
    "an ended run that never announced its policy": (
        "not announced", lambda f, r: replace(f, ended=True, policies=f.policies[:1])),
    "a dead letter without a cause": (
        "no cause", lambda f, r: replace(f, dead=(*f.dead, DeadFact("verifier", "temper.rewards/0/1")))),
    "an unreadable record that nobody buried": (
        "silent loss", lambda f, r: replace(f, unreadable=("temper.rewards/0/9: no schema",))),
    "records that retention took": ("not readable", lambda f, r: replace(f, unread={"temper.rewards": 7})),
    "a span whose parent is gone": ("trace not connected", _span_gone),
    "a record that lost its context": ("trace not connected", _context_lost),
    "no train spans": ("trace not connected", _spans_without("train")),
    "no step spans": ("trace not connected", _spans_without("step")),
    "a task without a trace": ("trace not connected", lambda f, r: replace(
        f, tasks=(*f.tasks, TaskFact("0-rl-7777777", (0,))))),
}  # fmt: skip
