"""One optimizer step: the gradient of a batch, its norm, what is decided on it, and the update.

Invariant: a step is whole or it is nothing, on every rank. A loss or a norm that is not finite, a guard that says so,
or a stop that is asked for, leaves weights and moments as they were.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

import torch

from services.learner.batching import Batch
from services.learner.distributed.ranks import Alone, Ranks
from services.learner.distributed.spread import whole
from services.learner.distributed.verdict import Broken, Report, Verdict, merged
from services.learner.gradient import Gradient, not_finite
from services.learner.guard.decision import Decision
from services.learner.metrics import StepMetrics, TokenRecord
from services.learner.model import PolicyModel, Reference
from services.learner.objectives.presets import Objective


class Decides(Protocol):
    """Who is asked between the gradient and the update."""

    def decide(self, metrics: StepMetrics, record: TokenRecord) -> Decision: ...


class Step:
    """Computes steps of one policy. `reference`, `should_stop` and `ranks` as of `Gradient`: what the ranks measured is
    summed on rank 0, which decides for all."""

    def __init__(
        self,
        policy: PolicyModel,
        optimizer: torch.optim.Optimizer,
        *,
        micro_batch_tokens: int,
        max_gradient_norm: float,
        reference: Reference | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        ranks: Ranks | None = None,
    ) -> None:
        self._policy = policy
        self._optimizer = optimizer
        self._max_norm = max_gradient_norm
        self._ranks: Ranks = Alone() if ranks is None else ranks
        self._gradient = Gradient(
            policy,
            micro_batch_tokens=micro_batch_tokens,
            reference=reference,
            should_stop=should_stop,
            ranks=self._ranks,
        )

    def take(
        self,
        batch: Batch,
        objective: Objective,
        learning_rate: float,
        kl_coefficient: float,
        ruling: Decides | None = None,
        *,
        judged: bool | None = None,
    ) -> StepMetrics:
        """Trains on the batch. A batch in which nothing has a gradient changes nothing, and neither does one that
        `ruling` drops; it may also lower the rate. `judged`: rank 0 has a ruling.

        Raises `NonFiniteStepError` (unless `ruling` has dropped the step) and `StepAbandonedError`; the weights are
        untouched then. On the other ranks the metrics are their own share's.
        """
        began = time.perf_counter()
        record = TokenRecord() if (ruling is not None if judged is None else judged) else None
        try:
            own = self._gradient.accumulate(batch, objective, kl_coefficient, record)
            rows = self._ranks.most(len(batch.rows))
            norm = self._norm(own.broken) if rows else 0.0
            reports = self._ranks.gather(own)
            metrics, verdict = own.sums.metrics(norm, own.computed), None
            if self._ranks.leads:
                report = merged(reports)
                metrics = report.sums.metrics(norm, report.computed)
                metrics.silent = batch.silent
                if ruling is not None and report.record is not None:
                    metrics.decision = ruling.decide(metrics, report.record)
                learns = rows > 0 and not batch.silent
                verdict = _verdict(metrics, report, batch, learning_rate if learns else 0.0)
            verdict = self._ranks.share(verdict)
            assert verdict is not None
            if verdict.broken is not None and self._ranks.leads:
                raise not_finite(verdict.broken)
            if verdict.applies:
                metrics.learning_rate = verdict.learning_rate
                self._update(metrics.learning_rate)
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        metrics.seconds = time.perf_counter() - began
        return metrics

    def _norm(self, broken: Broken | None) -> float:
        """Of the whole gradient, which is clipped to its limit; not a number after a loss that was not finite."""
        if self._ranks.most(int(broken is not None)):
            return math.nan
        trained = [p for p in self._policy.model.parameters() if p.requires_grad]
        self._ranks.sum_gradients(trained)
        gradients = [p for p in trained if p.grad is not None]
        return float(whole(torch.nn.utils.clip_grad_norm_(gradients, self._max_norm)))

    def _update(self, learning_rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()


def _verdict(metrics: StepMetrics, report: Report, batch: Batch, learning_rate: float) -> Verdict:
    """What becomes of the step. `learning_rate` is 0 where nothing has a gradient."""
    if metrics.dropped:
        return Verdict()
    if report.broken is not None:
        return Verdict(broken=report.broken)
    if learning_rate == 0:
        return Verdict()
    if not math.isfinite(metrics.gradient_norm):
        return Verdict(
            broken=Broken("gradient norm", tuple(attempt.trajectory_id for attempt in batch.attempts))
        )
    factor = 1.0 if metrics.decision is None else metrics.decision.rate_factor
    return Verdict(applies=True, learning_rate=learning_rate * factor)
