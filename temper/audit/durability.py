"""Only durable policies were published.

Invariant checked: every announced policy has its complete checkpoint with the announced weights; a version never
meant two sets of weights; files that are there hash to their manifest; the newest checkpoint can be resumed and
remembers what was booked; every step is covered by a checkpoint; a run that ended announced its last policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shared.contracts import Step
from temper.audit.facts import RunFacts
from temper.audit.finding import Finding


def check_policies(facts: RunFacts) -> Iterator[Finding]:
    checkpoints = {checkpoint.key: checkpoint for checkpoint in facts.checkpoints}
    digests: dict[int, str] = {}
    newest = max((policy.version for policy in facts.policies), default=-1)
    for policy in facts.policies:
        name = f"policy {policy.version}"
        checkpoint = checkpoints.get(policy.checkpoint)
        if checkpoint is None:
            yield Finding("not durable", name, f"its checkpoint {policy.checkpoint} does not exist")
        elif checkpoint.problem:
            yield Finding("not durable", name, f"its checkpoint {checkpoint.key}: {checkpoint.problem}")
        elif checkpoint.weights_digest != policy.digest:
            text = f"announced {policy.digest[:12]}…, its checkpoint holds {checkpoint.weights_digest[:12]}…"
            yield Finding("not durable", name, text)
        elif policy.version == newest and checkpoint.pruned:
            yield Finding(
                "not durable", name, f"it is the newest and has lost {', '.join(checkpoint.pruned)}"
            )
        before = digests.setdefault(policy.version, policy.digest)
        if before != policy.digest:
            text = f"announced with digest {before[:12]}… and with {policy.digest[:12]}…"
            yield Finding("version repeated", name, text)


def check_checkpoints(facts: RunFacts) -> Iterator[Finding]:
    complete = [checkpoint for checkpoint in facts.checkpoints if not checkpoint.problem]
    for checkpoint in facts.checkpoints:
        for text in checkpoint.damaged:
            yield Finding("damaged checkpoint", checkpoint.key, text)
    newest = max(complete, key=lambda checkpoint: checkpoint.step, default=None)
    if newest is not None and newest.pruned:
        text = f"it is the newest and cannot be resumed: {', '.join(newest.pruned)} is gone"
        yield Finding("not durable", newest.key, text)


def check_memory(facts: RunFacts, lineage: Sequence[Step]) -> Iterator[Finding]:
    """What a restart would go on from knows every group that was booked: none can be trained a second time."""
    newest = max((c.step for c in facts.checkpoints if not c.problem), default=-1)
    if facts.remembered is None:
        return
    for step in lineage:
        for group in step.groups:
            if step.step <= newest and group.group_id not in facts.remembered:
                text = f"step {step.step} booked it, the checkpoint of step {newest} does not know it as resolved"
                yield Finding("forgotten", f"group {group.group_id}", text)


def check_coverage(facts: RunFacts, lineage: Sequence[Step]) -> Iterator[Finding]:
    complete = [checkpoint.step for checkpoint in facts.checkpoints if not checkpoint.problem]
    last = max(complete, default=-1)
    for step in lineage:
        if step.step > last:
            text = (
                f"no complete checkpoint covers it; the newest is of step {last}"
                if complete
                else "no checkpoint"
            )
            yield Finding("not durable", f"step {step.step}", text)
    announced = max((policy.version for policy in facts.policies), default=-1)
    if facts.ended and lineage and announced < lineage[-1].policy_version:
        text = f"the run ended at version {lineage[-1].policy_version}, the newest announced is {announced}"
        yield Finding("not announced", f"policy {lineage[-1].policy_version}", text)
