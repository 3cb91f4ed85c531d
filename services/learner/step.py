"""One optimizer step: the gradient of a batch in micro-batches, its norm, and the update.

Invariant: a step is whole or it is nothing. A loss or a norm that is not finite, a guard that says so, or a stop that
is asked for, leaves weights and moments as they were.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from services.learner.batching import Batch, MicroBatch, Row, collate
from services.learner.beforehand import Known, know, rewards_pay_kl
from services.learner.guard.decision import Decision
from services.learner.metrics import StepMetrics, Sums, TokenRecord
from services.learner.model import PolicyModel
from services.learner.objectives.kl import kl_estimate
from services.learner.objectives.pairs import Pairs, preference_loss
from services.learner.objectives.policy import LossTerms, Tokens, policy_loss
from services.learner.objectives.presets import Objective
from shared.errors import TemperError


class NonFiniteStepError(TemperError):
    """A step that was refused; `trajectories` are the attempts whose loss was not finite."""

    def __init__(self, message: str, trajectories: tuple[str, ...]) -> None:
        super().__init__(message)
        self.trajectories = trajectories


class StepAbandonedError(TemperError):
    """The service is asked to stop while a step was computed; the batch comes again after the restart."""


class Decides(Protocol):
    """Who is asked between the gradient and the update."""

    def decide(self, metrics: StepMetrics, record: TokenRecord) -> Decision: ...


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
        self._broken: NonFiniteStepError | None = None
        """The first loss of this step that was not finite, where it was measured to its end all the same."""

    def take(
        self,
        batch: Batch,
        objective: Objective,
        learning_rate: float,
        kl_coefficient: float,
        ruling: Decides | None = None,
    ) -> StepMetrics:
        """Trains on the batch. A batch in which nothing has a gradient changes nothing, and neither does one that
        `ruling` drops; it may also lower the rate.

        Raises `NonFiniteStepError` (unless `ruling` has dropped the step) and `StepAbandonedError`; the weights are
        untouched then.
        """
        began = time.perf_counter()
        record = TokenRecord() if ruling is not None else None
        try:
            sums, computed = self.accumulate(batch, objective, kl_coefficient, record)
            norm = self._norm() if batch.rows else 0.0
            metrics = sums.metrics(norm, computed)
            if ruling is not None and record is not None:
                metrics.decision = ruling.decide(metrics, record)
            if batch.rows and not metrics.dropped:
                self._check_finite(norm, batch)
                factor = 1.0 if metrics.decision is None else metrics.decision.rate_factor
                metrics.learning_rate = learning_rate * factor
                self._update(metrics.learning_rate)
        finally:
            self._broken = None
            self._optimizer.zero_grad(set_to_none=True)
        metrics.seconds = time.perf_counter() - began
        return metrics

    def accumulate(
        self, batch: Batch, objective: Objective, kl_coefficient: float, record: TokenRecord | None = None
    ) -> tuple[Sums, int]:
        """Adds the batch's gradient to the parameters; (sums, positions computed).

        Raises `NonFiniteStepError` at the first loss that is not finite. With a `record` the rest is measured all the
        same, and nothing more is added.
        """
        sums, computed = Sums(), 0
        cuts = batch.cuts(self._micro_batch_tokens)
        given: Iterator[Known] = iter([Known()] * len(cuts))
        if self._reference is not None and rewards_pay_kl(objective, kl_coefficient):
            given = iter(
                know(
                    map(self._collate, cuts),
                    batch,
                    objective,
                    kl_coefficient,
                    policy=self._policy,
                    reference=self._reference,
                )
            )
        for rows, known in zip(cuts, given, strict=True):
            micro = self._collate(rows)
            computed += micro.ids.numel()
            self._backward(micro, batch, objective, kl_coefficient, sums=sums, known=known, record=record)
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
        sums: Sums,
        known: Known,
        record: TokenRecord | None,
    ) -> None:
        new, entropy = self._policy.statistics(micro, entropy_gradient=objective.entropy_coefficient > 0)
        tokens = self._tokens(micro, batch, objective, known, statistics=(new, entropy))
        if objective.kind == "preference":
            terms = self._pair_terms(micro, batch, objective, tokens, sums)
        else:
            terms = policy_loss(tokens, objective)
        loss = terms.total(kl_coefficient, objective.entropy_coefficient)
        slope = torch.zeros_like(new.detach())
        if not bool(torch.isfinite(loss)):
            wrong = _wrong(new, tokens)
            broken = _not_finite("loss", _owners_of(micro.attempts[wrong], batch))
            if record is None:
                raise broken
            self._broken = self._broken or broken
            slope[wrong] = torch.nan
        if self._broken is None:
            if record is not None:
                new.retain_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            slope = new.grad if record is not None and new.grad is not None else slope
        sums.add(loss.detach(), terms, new, tokens.sampler, entropy.detach())
        if record is not None:
            record.add(micro.attempts, terms, new, tokens.sampler, entropy, slope=slope)

    def _pair_terms(
        self, micro: MicroBatch, batch: Batch, objective: Objective, tokens: Tokens, sums: Sums
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
                weight=new.new_full((len(pairs),), 1 / len(batch.pairs)),
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
        sampler = new.detach() if batch.demonstrated else micro.sampler.to(new.dtype)
        reference = None if known.reference is None else known.reference.to(new.dtype)
        if reference is None and self._reference is not None:
            reference = self._reference.logprobs(micro).to(new.dtype)
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

    def _norm(self) -> float:
        """Of the whole gradient, which is clipped to its limit; not a number after a loss that was not finite."""
        if self._broken is not None:
            return math.nan
        parameters = [p for p in self._policy.model.parameters() if p.grad is not None]
        return float(torch.nn.utils.clip_grad_norm_(parameters, self._max_norm))

    def _check_finite(self, norm: float, batch: Batch) -> None:
        if self._broken is not None:
            raise self._broken
        if not math.isfinite(norm):
            raise _not_finite("gradient norm", tuple(attempt.trajectory_id for attempt in batch.attempts))

    def _update(self, learning_rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()


def _wrong(new: Tensor, tokens: Tokens) -> Tensor:
    """bool[n]: the tokens whose own part of the loss is not finite; all where none can be told."""
    known = new.detach()
    wrong = ~torch.isfinite(known * tokens.weight * torch.exp(known - tokens.sampler))
    return wrong if bool(wrong.any()) else torch.ones_like(wrong)


def _owners_of(attempts: Tensor, batch: Batch) -> tuple[str, ...]:
    return tuple(batch.attempts[index].trajectory_id for index in torch.unique(attempts).tolist())


def _not_finite(what: str, trajectories: tuple[str, ...]) -> NonFiniteStepError:
    shown = ", ".join(trajectories[:8]) + (
        f" and {len(trajectories) - 8} more" if len(trajectories) > 8 else ""
    )
    return NonFiniteStepError(
        f"the {what} is not finite; step refused, weights untouched; {shown}", trajectories
    )
