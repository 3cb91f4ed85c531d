"""What a step measures: sums over its micro-batches, and the means that are told of it.

Invariant: a sum that met something that is not finite is not finite; nothing is dropped to make a number look well.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from services.learner.guard.contributions import TokenFacts
from services.learner.guard.decision import Decision
from services.learner.objectives.pairs import PairTerms
from services.learner.objectives.policy import LossTerms

TAIL = 2.0
"""A ratio p_learner/p_sampler beyond this factor, either way, is counted as the tail of the distribution."""
_OF_SAMPLES = ("logprob_gap_mean", "logprob_gap_max", "effective_sample_size", "clip_fraction")
"""What means nothing where nobody sampled: the ratio to the sampler is 1 by definition there."""
_LARGEST = frozenset({"gap_max", "ratio_max"})
"""Of the sums, those that are no sums."""


@dataclass(slots=True)
class StepMetrics:
    """Means over the sampled tokens that had a gradient, unless said otherwise."""

    loss: float = 0.0
    policy_loss: float = 0.0
    kl_loss: float = 0.0
    """Before its coefficient, with the loss's own weights."""
    kl: float = 0.0
    """k3 against the reference policy where there is one, else against the policy that sampled."""
    entropy: float = 0.0
    clip_fraction: float = 0.0
    gradient_norm: float = 0.0
    """Before clipping."""
    effective_sample_size: float = 0.0
    """(Σw)² / (n·Σw²) over tokens, w = p_learner/p_sampler: 1 where both agree, towards 0 where few tokens count."""
    logprob_gap_mean: float = 0.0
    """|log p_learner − log p_sampler|."""
    logprob_gap_max: float = 0.0
    tokens: int = 0
    """Sampled tokens that had a gradient; of a silent batch those that were measured."""
    computed_tokens: int = 0
    """Positions that went through the model, padding included."""
    learning_rate: float = 0.0
    """Of the update; 0 where there was none."""
    seconds: float = 0.0
    terms: dict[str, float] = field(default_factory=dict)
    silent: bool = False
    """The tokens were computed to be measured: none had a gradient."""
    decision: Decision | None = None
    """The guard's, where there is one."""

    @property
    def dropped(self) -> bool:
        """Whether the guard kept the gradient from being applied."""
        return self.decision is not None and self.decision.drops

    def measured(self, *, sampled: bool, referred: bool) -> dict[str, float]:
        """What the guard may hold against bounds: nothing that was not measured.

        `sampled`: a policy made the tokens. `referred`: there is a reference policy.
        """
        if not self.tokens:
            return {}
        found = {
            "kl": self.kl,
            "entropy": self.entropy,
            "gradient_norm": self.gradient_norm,
            **{name: getattr(self, name) for name in _OF_SAMPLES if sampled},
        }
        if not (sampled or referred):
            del found["kl"]
        if self.silent:
            del found["gradient_norm"]
        return found


@dataclass(slots=True)
class Sums:
    """Running sums over micro-batches, in float64 on the host."""

    tokens: int = 0
    loss: float = 0.0
    policy: float = 0.0
    kl_loss: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    weight: float = 0.0
    weight_squared: float = 0.0
    gap: float = 0.0
    gap_max: float = 0.0
    correction: float = 0.0
    entropy_loss: float = 0.0
    ratio_max: float = 0.0
    ratio_high: int = 0
    ratio_low: int = 0
    pairs: int = 0
    pairs_correct: int = 0
    pair_margin: float = 0.0

    def add(self, loss: Tensor, terms: LossTerms, new: Tensor, sampler: Tensor, entropy: Tensor) -> None:
        gap = (new - sampler).detach().double()
        ratio = torch.exp(gap.clamp(-30.0, 30.0))
        self.tokens += gap.numel()
        self.loss += float(loss)
        self.policy += float(terms.policy.detach())
        self.kl_loss += float(terms.kl.detach())
        self.kl += float(terms.kl_tokens.double().sum())
        self.entropy += float(entropy.double().sum())
        self.clipped += float(terms.clipped.double().sum())
        self.weight += float(ratio.sum())
        self.weight_squared += float(ratio.square().sum())
        self.gap += float(gap.abs().sum())
        self.gap_max = _larger(self.gap_max, float(gap.abs().max()))
        self.correction += float(terms.correction.double().sum())
        self.entropy_loss += float(terms.entropy.detach())
        self.ratio_max = _larger(self.ratio_max, float(ratio.max()))
        self.ratio_high += int((ratio > TAIL).sum())
        self.ratio_low += int((ratio < 1 / TAIL).sum())

    def add_pairs(self, terms: PairTerms) -> None:
        self.pairs += terms.differences.numel()
        self.pairs_correct += int(terms.correct.sum())
        self.pair_margin += float(terms.differences.double().sum())

    @staticmethod
    def merged(parts: Sequence[Sums]) -> Sums:
        """Of several shares of a batch."""
        out = Sums()
        for part in parts:
            for name in Sums.__dataclass_fields__:
                join = _larger if name in _LARGEST else operator.add
                setattr(out, name, join(getattr(out, name), getattr(part, name)))
        return out

    def metrics(self, norm: float, computed: int) -> StepMetrics:
        n = max(1, self.tokens)
        size = self.weight**2 / (n * self.weight_squared) if self.weight_squared > 0 else 0.0
        of_pairs = {
            "pair_accuracy": self.pairs_correct / max(1, self.pairs),
            "pair_margin": self.pair_margin / max(1, self.pairs),
        }
        return StepMetrics(
            loss=self.loss,
            policy_loss=self.policy,
            kl_loss=self.kl_loss,
            kl=self.kl / n,
            entropy=self.entropy / n,
            clip_fraction=self.clipped / n,
            gradient_norm=norm,
            effective_sample_size=size,
            logprob_gap_mean=self.gap / n,
            logprob_gap_max=self.gap_max,
            tokens=self.tokens,
            computed_tokens=computed,
            terms={
                "policy": self.policy,
                "kl": self.kl_loss,
                "entropy": self.entropy_loss,
                "logprob_gap_mean": self.gap / n,
                "logprob_gap_max": self.gap_max,
                "correction_mean": self.correction / n,
                "ratio_max": self.ratio_max,
                "ratio_above_2": self.ratio_high / n,
                "ratio_below_half": self.ratio_low / n,
                **(of_pairs if self.pairs else {}),
            },
        )


class TokenRecord:
    """The numbers of every token of a step, for the guard: it must say which trajectories did it."""

    def __init__(self) -> None:
        self._columns: dict[str, list[np.ndarray]] = {name: [] for name in TokenFacts.__slots__}
        self._attempts: list[np.ndarray] = []

    def add(
        self,
        attempts: Tensor,
        terms: LossTerms,
        new: Tensor,
        sampler: Tensor,
        entropy: Tensor,
        *,
        slope: Tensor,
    ) -> None:
        """Of one micro-batch. slope [n]: ∂loss/∂log p, or where there was no backward pass NaN for whoever is why."""
        columns = {
            "kl": terms.kl_tokens,
            "entropy": entropy,
            "gap": new.detach() - sampler,
            "clipped": terms.clipped,
            "slope": slope,
        }
        for name, column in columns.items():
            self._columns[name].append(column.detach().double().cpu().numpy())
        self._attempts.append(attempts.cpu().numpy())

    @staticmethod
    def merged(parts: Sequence[TokenRecord]) -> TokenRecord:
        """One after another."""
        out = TokenRecord()
        for part in parts:
            for name, columns in part._columns.items():
                out._columns[name] += columns
            out._attempts += part._attempts
        return out

    def facts(self) -> tuple[TokenFacts, np.ndarray]:
        """(float64[n] columns, int64[n] attempt of each token)."""

        def whole(parts: list[np.ndarray], dtype: type) -> np.ndarray:
            return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype=dtype)

        columns = {name: whole(parts, np.float64) for name, parts in self._columns.items()}
        return TokenFacts(**columns), whole(self._attempts, np.int64)


def _larger(left: float, right: float) -> float:
    """What is not a number stays: `max` would drop it."""
    return right if math.isnan(right) else max(left, right)
