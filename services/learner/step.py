"""One optimizer step: the gradient of a batch in micro-batches, its norm, and the update.

Invariant: a step is whole or it is nothing. A loss or a norm that is not finite, or a stop that is asked for,
leaves weights and moments as they were.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from services.learner.batching import Batch, MicroBatch, Row, collate, micro_batches
from services.learner.beforehand import Known, know, rewards_pay_kl
from services.learner.model import PolicyModel
from services.learner.objectives.policy import LossTerms, Tokens, policy_loss
from services.learner.objectives.presets import Objective
from shared.errors import TemperError

TAIL = 2.0
"""A ratio p_learner/p_sampler beyond this factor, either way, is counted as the tail of the distribution."""


class NonFiniteStepError(TemperError):
    """A step that was refused; `trajectories` are the attempts whose loss was not finite."""

    def __init__(self, message: str, trajectories: tuple[str, ...]) -> None:
        super().__init__(message)
        self.trajectories = trajectories


class StepAbandonedError(TemperError):
    """The service is asked to stop while a step was computed; the batch comes again after the restart."""


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
    """Sampled tokens that had a gradient."""
    computed_tokens: int = 0
    """Positions that went through the model, padding included."""
    seconds: float = 0.0
    terms: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Sums:
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
        self.gap_max = max(self.gap_max, float(gap.abs().max()))
        self.correction += float(terms.correction.double().sum())
        self.entropy_loss += float(terms.entropy.detach())
        self.ratio_max = max(self.ratio_max, float(ratio.max()))
        self.ratio_high += int((ratio > TAIL).sum())
        self.ratio_low += int((ratio < 1 / TAIL).sum())


class Step:
    """Computes steps of one policy. `reference` is frozen, or None where the objective has no KL term.

    `should_stop` is asked between micro-batches.
    """

    def __init__(
        self,
        policy: PolicyModel,
        optimizer: torch.optim.Optimizer,
        *,
        micro_batch_tokens: int,
        max_gradient_norm: float,
        reference: PolicyModel | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._policy = policy
        self._optimizer = optimizer
        self._micro_batch_tokens = micro_batch_tokens
        self._max_norm = max_gradient_norm
        self._reference = reference
        self._should_stop = should_stop

    def take(
        self, batch: Batch, objective: Objective, learning_rate: float, kl_coefficient: float
    ) -> StepMetrics:
        """Trains on the batch. A batch in which nothing has a gradient changes nothing.

        Raises `NonFiniteStepError` and `StepAbandonedError`; the weights are untouched then.
        """
        began = time.perf_counter()
        try:
            sums, computed = self.accumulate(batch, objective, kl_coefficient)
            norm = self._update(learning_rate, batch) if batch.rows else 0.0
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        metrics = _metrics(sums, norm, computed)
        metrics.seconds = time.perf_counter() - began
        return metrics

    def accumulate(self, batch: Batch, objective: Objective, kl_coefficient: float) -> tuple[_Sums, int]:
        """Adds the batch's gradient to the parameters; (sums, positions computed)."""
        sums, computed = _Sums(), 0
        cuts = micro_batches(batch.rows, self._micro_batch_tokens)
        given = [Known()] * len(cuts)
        if self._reference is not None and rewards_pay_kl(objective, kl_coefficient):
            given = know(
                map(self._collate, cuts),
                batch,
                objective,
                kl_coefficient,
                policy=self._policy,
                reference=self._reference,
            )
        for rows, known in zip(cuts, given, strict=True):
            micro = self._collate(rows)
            computed += micro.ids.numel()
            self._backward(micro, batch, objective, kl_coefficient, sums=sums, known=known)
        return sums, computed

    def _collate(self, rows: list[Row]) -> MicroBatch:
        if self._should_stop():
            raise StepAbandonedError("the step was abandoned between micro-batches: the service stops")
        return collate(rows, self._policy.device)

    def _backward(
        self,
        micro: MicroBatch,
        batch: Batch,
        objective: Objective,
        kl_coefficient: float,
        *,
        sums: _Sums,
        known: Known,
    ) -> None:
        new, entropy = self._policy.statistics(micro, entropy_gradient=objective.entropy_coefficient > 0)
        tokens = self._tokens(micro, batch, objective, known, statistics=(new, entropy))
        terms = policy_loss(tokens, objective)
        loss = terms.total(kl_coefficient, objective.entropy_coefficient)
        if not bool(torch.isfinite(loss)):
            raise _not_finite("loss", self._culprits(micro, batch, new, tokens))
        loss.backward()  # type: ignore[no-untyped-call]
        sums.add(loss.detach(), terms, new, tokens.sampler, entropy.detach())

    def _tokens(
        self,
        micro: MicroBatch,
        batch: Batch,
        objective: Objective,
        known: Known,
        *,
        statistics: tuple[Tensor, Tensor],
    ) -> Tokens:
        new, entropy = statistics

        def of_attempts(values: list[float]) -> Tensor:
            table = torch.tensor(values, dtype=torch.float64, device=new.device)
            return table[micro.attempts].to(new.dtype)

        # A demonstration was sampled by nobody: its ratio to a sampler is 1 by definition.
        sampler = new.detach() if objective.kind == "imitation" else micro.sampler.to(new.dtype)
        reference = None if known.reference is None else known.reference.to(new.dtype)
        if reference is None and self._reference is not None:
            with torch.no_grad():
                reference = self._reference.statistics(micro)[0].to(new.dtype)
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
            reference=reference,
            kl_mask=of_attempts([float(attempt.kl) for attempt in batch.attempts]),
            entropy=entropy,
        )

    def _culprits(self, micro: MicroBatch, batch: Batch, new: Tensor, tokens: Tokens) -> tuple[str, ...]:
        wrong = ~torch.isfinite(new.detach() * tokens.weight * torch.exp(new.detach() - tokens.sampler))
        guilty = micro.attempts[wrong] if bool(wrong.any()) else micro.attempts
        return tuple(batch.attempts[index].trajectory_id for index in torch.unique(guilty).tolist())

    def _update(self, learning_rate: float, batch: Batch) -> float:
        parameters = [p for p in self._policy.model.parameters() if p.grad is not None]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._max_norm))
        if not math.isfinite(norm):
            raise _not_finite("gradient norm", tuple(attempt.trajectory_id for attempt in batch.attempts))
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        return norm


def _not_finite(what: str, trajectories: tuple[str, ...]) -> NonFiniteStepError:
    shown = ", ".join(trajectories[:8]) + (
        f" and {len(trajectories) - 8} more" if len(trajectories) > 8 else ""
    )
    return NonFiniteStepError(
        f"the {what} is not finite; step refused, weights untouched; {shown}", trajectories
    )


def _metrics(sums: _Sums, norm: float, computed: int) -> StepMetrics:
    n = max(1, sums.tokens)
    size = sums.weight**2 / (n * sums.weight_squared) if sums.weight_squared > 0 else 0.0
    return StepMetrics(
        loss=sums.loss,
        policy_loss=sums.policy,
        kl_loss=sums.kl_loss,
        kl=sums.kl / n,
        entropy=sums.entropy / n,
        clip_fraction=sums.clipped / n,
        gradient_norm=norm,
        effective_sample_size=size,
        logprob_gap_mean=sums.gap / n,
        logprob_gap_max=sums.gap_max,
        tokens=sums.tokens,
        computed_tokens=computed,
        terms={
            "policy": sums.policy,
            "kl": sums.kl_loss,
            "entropy": sums.entropy_loss,
            "logprob_gap_mean": sums.gap / n,
            "logprob_gap_max": sums.gap_max,
            "correction_mean": sums.correction / n,
            "ratio_max": sums.ratio_max,
            "ratio_above_2": sums.ratio_high / n,
            "ratio_below_half": sums.ratio_low / n,
        },
    )
