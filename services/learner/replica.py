"""The policy in training as its process holds it: weights, optimizer, reference, and all that is done to them.

Invariant: of several ranks rank 0 alone is asked; it tells the others, and every rank then runs the same method with the
same collectives in it. Whole tensors go in and come out, so whoever asks does not know how they are spread; only the
optimizer's state is written and read by each rank for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.distributed import ProcessGroup

from services.learner.batching import Batch
from services.learner.distributed import commands
from services.learner.distributed.ranks import Alone, Ranks
from services.learner.distributed.split import split
from services.learner.distributed.spread import own_part, put, wholes
from services.learner.metrics import StepMetrics
from services.learner.model import PolicyModel, Reference
from services.learner.objectives.presets import Objective
from services.learner.optimizer import check_moments, make_moments, make_optimizer
from services.learner.publish import make_canary
from services.learner.saved_tensors import saved_tensors, wanted_tensors
from services.learner.sharded import SavedShards, load_sharded
from services.learner.staging import HostCopies
from services.learner.step import Decides, Step
from shared.contracts import Canary
from shared.settings import LearnerSettings


class Replica:
    """Blocking, and of one thread. Every method raises `RankLostError` where a rank is gone."""

    def __init__(
        self,
        policy: PolicyModel,
        settings: LearnerSettings,
        ranks: Ranks | None = None,
    ) -> None:
        self.policy = policy
        self.optimizer = make_optimizer(policy, settings)
        self.reference: Reference | None = None
        self._settings = settings
        self._ranks: Ranks = Alone() if ranks is None else ranks
        self._copies = HostCopies()

    def take(
        self,
        batch: Batch | None,
        objective: Objective,
        learning_rate: float,
        kl_coefficient: float,
        ruling: Decides | None = None,
        *,
        judged: bool | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> StepMetrics:
        """One step; `batch` and `ruling` are rank 0's, `should_stop` any rank's. Raises as `Step.take`."""
        judged = ruling is not None if judged is None else judged
        self._ranks.tell(commands.Take(objective, learning_rate, kl_coefficient, judged))
        share = self._ranks.scatter(None if batch is None else split(batch, self._ranks.data))
        step = Step(
            self.policy,
            self.optimizer,
            micro_batch_tokens=self._settings.micro_batch_tokens,
            max_gradient_norm=self._settings.max_gradient_norm,
            reference=self.reference,
            should_stop=should_stop,
            ranks=self._ranks,
        )
        with self._ranks.watched():
            return step.take(share, objective, learning_rate, kl_coefficient, ruling, judged=judged)

    def put_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copies rank 0's master weights in."""
        self._ranks.tell(commands.PutWeights())
        put(self.policy.named_tensors(), weights, self._ranks)

    def stage_optimizer(self, step: int) -> dict[str, Tensor]:
        """Copies of what this rank writes of the checkpoint of `step`: its part of the moments, and of the master
        weights where another dtype is served. Valid until the next call, which must wait until they are written."""
        self._ranks.tell(commands.StageOptimizer(step))
        return self._copies.of(own_part(saved_tensors(self.policy, self.optimizer), self._ranks))

    def load_optimizer(self, saved: SavedShards) -> None:
        """Every rank reads its own part, whatever number of ranks has written it; `saved` is where this one does.

        Raises `StorageError`: damaged, or of another model.
        """
        kinds = saved.kinds()
        some = check_moments(self.policy, kinds)
        self._ranks.tell(commands.LoadOptimizer(saved.folder, saved.digests))
        make_moments(self.policy, self.optimizer, some=some)
        load_sharded(saved, wanted_tensors(self.policy, self.optimizer, kinds), self.beside)

    @property
    def beside(self) -> ProcessGroup | None:
        """The ranks that write a checkpoint while they take steps; None alone."""
        return self._ranks.beside

    def forget_moments(self) -> None:
        """A stage starts with a fresh optimizer."""
        self._ranks.tell(commands.ForgetMoments())
        self.optimizer.state.clear()

    def weights(self) -> dict[str, Tensor]:
        """The master weights, whole; not copies where this process holds them whole anyway."""
        return self._gathered(commands.GatherWeights(), self.policy.named_tensors())

    def served(self) -> dict[str, Tensor]:
        """As `weights`, in the dtype that is served."""
        return self._gathered(commands.GatherServed(), self.policy.published_tensors())

    def canary(self, tolerance: float) -> Canary:
        """Of the policy as it is now."""
        if self._ranks.lockstep:
            self._ranks.tell(commands.Score(tolerance))
        with self._ranks.watched():
            return make_canary(self.policy, tolerance)

    def freeze_reference(self) -> dict[str, Tensor]:
        """The policy as it is now becomes the reference; its weights, whole."""
        self._ranks.tell(commands.FreezeReference())
        with self._ranks.watched():
            self.reference = self.policy.frozen()
            return wholes(self.reference.named_tensors(), self._ranks)

    def put_reference(self, weights: Mapping[str, Tensor]) -> None:
        """The reference is one of these weights, as `weights` gave them."""
        self._ranks.tell(commands.PutReference())
        with self._ranks.watched():
            self.reference = self.policy.frozen()
        put(self.reference.named_tensors(), weights, self._ranks)

    def drop_reference(self) -> None:
        self._ranks.tell(commands.DropReference())
        self.reference = None

    def beat(self) -> None:
        """Tells the others that rank 0 is still there: they wait for a command no longer than the timeout."""
        self._ranks.tell(commands.Beat())

    def dismiss(self) -> None:
        """Sends the others home."""
        self._ranks.tell(commands.Leave())

    def _gathered(self, command: commands.Command, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self._ranks.lockstep:
            self._ranks.tell(command)
        with self._ranks.watched():
            return wholes(tensors, self._ranks)
