"""The loss of one micro-batch: what its tokens are measured with, and the terms that the objective makes of that.

Invariant: weights and denominators are those of the whole batch, so the losses of micro-batches add up to the batch's,
however it is cut.
"""

from __future__ import annotations

import torch
from torch import Tensor

from services.learner.batching import Batch
from services.learner.beforehand import Known
from services.learner.collate import MicroBatch
from services.learner.metrics import Sums
from services.learner.model import Reference
from services.learner.objectives.kl import kl_estimate
from services.learner.objectives.pairs import Pairs, preference_loss
from services.learner.objectives.policy import LossTerms, Tokens, policy_loss
from services.learner.objectives.presets import Objective


def tokens_of(
    micro: MicroBatch,
    batch: Batch,
    objective: Objective,
    known: Known,
    *,
    statistics: tuple[Tensor, Tensor],
    reference: Reference | None,
) -> Tokens:
    """`statistics`: (log-probability with its gradient, entropy), both [n]. A `reference` is asked unless what it says is
    `known`."""
    new, entropy = statistics

    def of_attempts(values: list[float]) -> Tensor:
        table = torch.tensor(values, dtype=torch.float64, device=new.device)
        return table[micro.attempts].to(new.dtype)

    # A demonstration was sampled by nobody: its ratio to a sampler is 1 by definition.
    sampler = new.detach() if batch.demonstrated else micro.sampler.to(new.dtype)
    referred = None if known.reference is None else known.reference.to(new.dtype)
    if referred is None and reference is not None:
        referred = reference.logprobs(micro).to(new.dtype)
    return Tokens(
        new=new,
        sampler=sampler,
        old=new.detach() if objective.old_logprobs == "recompute" else sampler,
        advantage=(
            of_attempts([attempt.advantage for attempt in batch.attempts])
            if known.advantages is None
            else known.advantages.to(device=new.device, dtype=new.dtype)
        ),
        weight=of_attempts([attempt.weight for attempt in batch.attempts]),
        rows=micro.rows,
        count=micro.count,
        reference=referred,
        kl_mask=of_attempts([float(attempt.kl) for attempt in batch.attempts]),
        entropy=entropy,
    )


def terms_of(micro: MicroBatch, batch: Batch, objective: Objective, tokens: Tokens, sums: Sums) -> LossTerms:
    """Of the objective's kind. What is measured of pairs alone is added to `sums`."""
    if objective.kind == "preference":
        return _pair_terms(micro, batch, objective, tokens, sums)
    return policy_loss(tokens, objective)


def _pair_terms(
    micro: MicroBatch, batch: Batch, objective: Objective, tokens: Tokens, sums: Sums
) -> LossTerms:
    """The loss of the pairs whose rows are in this micro-batch, in the form that every objective has."""
    here = set(micro.attempts.tolist())
    pairs = [pair for pair in batch.pairs if pair.chosen in here]
    new = tokens.new

    def of_pairs(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=new.device)

    found = preference_loss(
        Pairs(
            new=new,
            reference=None if objective.reference_free else tokens.reference,
            rows=micro.attempts,
            count=len(batch.attempts),
            chosen=of_pairs([pair.chosen for pair in pairs]),
            rejected=of_pairs([pair.rejected for pair in pairs]),
            weight=new.new_tensor([batch.attempts[pair.chosen].weight for pair in pairs]),
        ),
        objective,
    )
    sums.add_pairs(found)
    with torch.no_grad():
        base = tokens.sampler if tokens.reference is None else tokens.reference
        drift = kl_estimate(new, base, "k3")
    nothing = new.new_zeros(())
    return LossTerms(
        policy=found.loss,
        kl=nothing,
        clipped=torch.zeros_like(new, dtype=torch.bool),
        correction=torch.ones_like(new),
        kl_tokens=drift,
        entropy=nothing,
    )
