"""From losses per token to one number, with denominators of the whole batch.

Invariant: the loss is Σ weightᵢ·lossᵢ, and the weights depend on the batch alone. Cutting the batch into
micro-batches, padding it or changing its order changes no weight.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.learner.objectives.kinds import AggregationKind


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counted over every attempt that the batch is made of, those without signal included."""

    tokens: int
    """Sampled tokens."""
    attempts: int
    length: int
    """The constant of `sequence_sum_constant`, in tokens."""


def token_weight(kind: AggregationKind, attempt_tokens: int, batch: Denominators) -> float:
    """The weight of each token of an attempt of `attempt_tokens` sampled tokens.

    token_mean: 1/tokens (DAPO). sequence_mean: mean over attempts of the mean over their tokens (GRPO).
    sequence_sum: mean over attempts of their sum. sequence_sum_constant: that over a constant length (Dr. GRPO).
    """
    if kind == "token_mean":
        return 1.0 / max(1, batch.tokens)
    if kind == "sequence_mean":
        return 1.0 / (max(1, attempt_tokens) * max(1, batch.attempts))
    if kind == "sequence_sum":
        return 1.0 / max(1, batch.attempts)
    return 1.0 / (max(1, batch.attempts) * max(1, batch.length))
