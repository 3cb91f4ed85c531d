"""The ranks of a learner, and the policy as each of them holds it.

Invariant: every rank begins with rank 0's weights to the bit, whatever lies in its own copy of the model's folder.
"""

from __future__ import annotations

from services.learner.distributed.joined import JoinedRanks
from services.learner.distributed.place import Place, check_place
from services.learner.distributed.ranks import Alone, Ranks
from services.learner.distributed.spread_policy import SpreadPolicy
from services.learner.model import PolicyModel, choose_device, load_policy
from shared.settings import LearnerSettings, ParallelSettings, Settings


def open_policy(settings: Settings, place: Place) -> tuple[PolicyModel, Ranks]:
    """Blocking. Loads the model, waits for the other ranks, spreads it over them.

    Raises as `load_policy` and `check_place`, and `RankLostError` where a rank does not come.
    """
    check_place(settings.learner, place)
    if place.ranks == 1:
        return load_policy(settings.model, settings.learner, settings.run.seed), Alone()
    learner = of_rank(settings.learner, place)
    policy = load_policy(settings.model, learner, settings.run.seed)
    ranks = JoinedRanks(place, policy.device, learner.parallel)
    return spread_policy(policy, ranks, learner.parallel), ranks


def spread_policy(policy: PolicyModel, ranks: JoinedRanks, parallel: ParallelSettings) -> PolicyModel:
    """The same policy on every rank, or its part."""
    for tensor in policy.model.state_dict(keep_vars=True).values():  # of adapters, what they are laid on too
        ranks.give(tensor.detach())
    if not ranks.lockstep:
        return policy
    return SpreadPolicy.of(policy, ranks.mesh, parallel)


def of_rank(learner: LearnerSettings, place: Place) -> LearnerSettings:
    """`cuda` and `auto` are the accelerator of this rank's own number on its machine. Raises as `choose_device`."""
    device = choose_device(learner.device)
    if device.type != "cuda" or device.index is not None:
        return learner
    own = f"cuda:{place.local_rank}"
    choose_device(own)
    return learner.model_copy(update={"device": own})
