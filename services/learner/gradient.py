"""The gradient of a batch: its micro-batches one after another, forward and backward, beside the other ranks.

Invariant: ranks whose passes wait for each other make equally many of them. After the first loss that is not finite
nothing is added to the gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from services.learner.batching import Batch
from services.learner.beforehand import Known, Measured, know, measure, rewards_pay_kl
from services.learner.collate import MicroBatch, collate, idle_micro_batch
from services.learner.distributed.ranks import Alone, Ranks
from services.learner.distributed.verdict import Broken, Report
from services.learner.metrics import Sums, TokenRecord
from services.learner.micro_loss import terms_of, tokens_of
from services.learner.model import PolicyModel, Reference
from services.learner.objectives.policy import Tokens
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


class Gradient:
    """Of one policy. `reference` is frozen, or None where the objective has no KL term; `should_stop` is asked between
    micro-batches. Of several `ranks` each has its share of the batch."""

    def __init__(
        self,
        policy: PolicyModel,
        *,
        micro_batch_tokens: int,
        reference: Reference | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        ranks: Ranks | None = None,
    ) -> None:
        self._policy = policy
        self._micro_batch_tokens = micro_batch_tokens
        self._reference = reference
        self._should_stop = should_stop
        self._ranks: Ranks = Alone() if ranks is None else ranks

    def accumulate(
        self, batch: Batch, objective: Objective, kl_coefficient: float, record: TokenRecord | None = None
    ) -> Report:
        """Adds the batch's gradient to the parameters; what was measured.

        Raises `StepAbandonedError`, and `NonFiniteStepError` at the first loss that is not finite. With a `record`, or
        beside other ranks, the rest is measured all the same, and the report says what is broken.
        """
        sums, computed, broken = Sums(), 0, None
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
            found = self._backward(
                micro,
                batch,
                objective,
                kl_coefficient,
                sums=sums,
                known=known[number],
                record=record,
                whole=broken is None,
            )
            broken = broken or found
        return Report(sums, computed, record, broken)

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
        whole: bool,
    ) -> Broken | None:
        """What of its loss is not finite, if anything. `whole`: every loss before it was."""
        statistics = self._policy.statistics(micro, entropy_gradient=objective.entropy_coefficient > 0)
        new, entropy = statistics
        tokens = tokens_of(micro, batch, objective, known, statistics=statistics, reference=self._reference)
        terms = terms_of(micro, batch, objective, tokens, sums)
        loss = terms.total(kl_coefficient, objective.entropy_coefficient)
        slope, broken = torch.zeros_like(new.detach()), None
        if not bool(torch.isfinite(loss)):
            wrong = _wrong(new, tokens)
            broken = Broken("loss", _owners_of(micro.attempts[wrong], batch))
            if record is None and self._ranks.count == 1:
                raise not_finite(broken)
            slope[wrong] = torch.nan
        adds = whole and broken is None
        if adds or self._ranks.lockstep:
            if record is not None and adds:
                new.retain_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            slope = new.grad if new.retains_grad and new.grad is not None else slope
        sums.add(loss.detach(), terms, new, tokens.sampler, entropy.detach())
        if record is not None:
            record.add(micro.attempts, terms, new, tokens.sampler, entropy, slope=slope)
        return broken


def not_finite(broken: Broken) -> NonFiniteStepError:
    """What refuses the step."""
    named = broken.trajectories
    shown = ", ".join(named[:8]) + (f" and {len(named) - 8} more" if len(named) > 8 else "")
    return NonFiniteStepError(
        f"the {broken.what} is not finite; step refused, weights untouched; {shown}", named
    )


def _wrong(new: Tensor, tokens: Tokens) -> Tensor:
    """bool[n]: the tokens whose own part of the loss is not finite; all where none can be told."""
    known = new.detach()
    wrong = ~torch.isfinite(known * tokens.weight * torch.exp(known - tokens.sampler))
    return wrong if bool(wrong.any()) else torch.ones_like(wrong)


def _owners_of(attempts: Tensor, batch: Batch) -> tuple[str, ...]:
    return tuple(batch.attempts[index].trajectory_id for index in torch.unique(attempts).tolist())
