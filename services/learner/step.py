"""One optimizer step: the gradient of a batch in micro-batches, its norm, and the update.

Invariant: a step is whole or it is nothing, on every rank. A loss or a norm that is not finite, a guard that says so,
or a stop that is asked for, leaves weights and moments as they were.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from services.learner.batching import Batch
from services.learner.beforehand import Known, Measured, know, measure, rewards_pay_kl
from services.learner.collate import MicroBatch, collate, idle_micro_batch
from services.learner.distributed.ranks import Alone, Ranks
from services.learner.distributed.spread import whole
from services.learner.distributed.verdict import Broken, Report, Verdict, merged
from services.learner.guard.decision import Decision
from services.learner.metrics import StepMetrics, Sums, TokenRecord
from services.learner.model import PolicyModel, Reference
from services.learner.objectives.kl import kl_estimate
from services.learner.objectives.pairs import Pairs, preference_loss
from services.learner.objectives.policy import LossTerms, Tokens, policy_loss
from services.learner.objectives.presets import Objective
from services.learner.rows import Row
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

    `should_stop` is asked between micro-batches. Of several `ranks` each has its share of the batch; what they measured
    is summed on rank 0, which decides for all.
    """

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
        self._micro_batch_tokens = micro_batch_tokens
        self._max_norm = max_gradient_norm
        self._reference = reference
        self._should_stop = should_stop
        self._ranks: Ranks = Alone() if ranks is None else ranks
        self._broken: Broken | None = None
        """The first loss of this step that was not finite, where it was measured to its end all the same."""

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
            sums, computed = self.accumulate(batch, objective, kl_coefficient, record)
            rows = self._ranks.most(len(batch.rows))
            norm = self._norm() if rows else 0.0
            reports = self._ranks.gather(Report(sums, computed, record, self._broken))
            metrics, verdict = sums.metrics(norm, computed), None
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
                raise _not_finite(verdict.broken)
            if verdict.applies:
                metrics.learning_rate = verdict.learning_rate
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

        Raises `NonFiniteStepError` at the first loss that is not finite. With a `record`, or beside other ranks, the
        rest is measured all the same, and nothing more is added.
        """
        sums, computed = Sums(), 0
        cuts = batch.cuts(self._micro_batch_tokens)
        rounds = self._ranks.most(len(cuts))
        known = [Known()] * len(cuts)
        if self._reference is not None and rewards_pay_kl(objective, kl_coefficient):
            known = self._know(cuts, rounds, batch, objective, kl_coefficient)
        for number in range(rounds):
            micro = self._collate(cuts, number)
            if micro is None:
                self._idle(objective, kl_coefficient)
                continue
            computed += micro.ids.numel()
            self._backward(
                micro, batch, objective, kl_coefficient, sums=sums, known=known[number], record=record
            )
        return sums, computed

    def _know(
        self, cuts: list[list[Row]], rounds: int, batch: Batch, objective: Objective, kl_coefficient: float
    ) -> list[Known]:
        """The reward's KL, over the shares of all ranks."""
        assert self._reference is not None
        measured = []
        for number in range(rounds):
            micro = self._collate(cuts, number)
            own = idle_micro_batch(self._policy.device) if micro is None else micro
            if micro is None and not self._ranks.lockstep:
                continue
            found = measure(own, objective, kl_coefficient, policy=self._policy, reference=self._reference)
            measured += [] if micro is None else [found]
        everywhere = self._ranks.gather_everywhere(Measured.joined(measured))
        return know(measured, everywhere, self._ranks.data_index, batch, objective)

    def _collate(self, cuts: list[list[Row]], number: int) -> MicroBatch | None:
        """None where this rank has nothing left and others have."""
        if self._ranks.most(int(self._should_stop())):
            raise StepAbandonedError("the step was abandoned between micro-batches: the service stops")
        if number >= len(cuts):
            return None
        policy = self._policy
        width = policy.packing_width if policy.packs else 0
        return collate(cuts[number], policy.device, width, blocks=policy.blocks)

    def _idle(self, objective: Objective, kl_coefficient: float) -> None:
        """Takes part where a pass of one rank waits for the others; its gradient is zero."""
        if not self._ranks.lockstep:
            return
        micro = idle_micro_batch(self._policy.device)
        new, _ = self._policy.statistics(micro, entropy_gradient=objective.entropy_coefficient > 0)
        if self._reference is not None and not rewards_pay_kl(objective, kl_coefficient):
            self._reference.logprobs(micro)
        (new.sum() * 0).backward()  # type: ignore[no-untyped-call]

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
            broken = Broken("loss", _owners_of(micro.attempts[wrong], batch))
            if record is None and self._ranks.count == 1:
                raise _not_finite(broken)
            self._broken = self._broken or broken
            slope[wrong] = torch.nan
        if self._broken is None or self._ranks.lockstep:
            if record is not None and self._broken is None:
                new.retain_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            slope = new.grad if new.retains_grad and new.grad is not None else slope
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
        if self._ranks.most(int(self._broken is not None)):
            return math.nan
        trained = [p for p in self._policy.model.parameters() if p.requires_grad]
        self._ranks.sum_gradients(trained)
        gradients = [p for p in trained if p.grad is not None]
        return float(whole(torch.nn.utils.clip_grad_norm_(gradients, self._max_norm)))

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


def _not_finite(broken: Broken) -> NonFiniteStepError:
    named = broken.trajectories
    shown = ", ".join(named[:8]) + (f" and {len(named) - 8} more" if len(named) > 8 else "")
    return NonFiniteStepError(
        f"the {broken.what} is not finite; step refused, weights untouched; {shown}", named
    )
