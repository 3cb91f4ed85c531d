"""One of two ranks: `ranks_program.py RESULTS MODE…`, started with RANK and WORLD_SIZE as torchrun sets them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
torch.set_num_threads(1)

from ranks_cases import MODES, OBJECTIVES, POLICIES, batch, policy_of, replica_of, run, store_in  # noqa: E402

from services.learner.batching import Batch  # noqa: E402
from services.learner.checkpoint import CheckpointStore  # noqa: E402
from services.learner.distributed.follower import follow  # noqa: E402
from services.learner.distributed.joined import JoinedRanks  # noqa: E402
from services.learner.distributed.opening import spread_policy  # noqa: E402
from services.learner.distributed.own_files import OwnFiles  # noqa: E402
from services.learner.distributed.place import place_of  # noqa: E402
from services.learner.distributed.spread import whole  # noqa: E402
from services.learner.gradient import NonFiniteStepError, StepAbandonedError  # noqa: E402
from services.learner.model import PolicyModel  # noqa: E402
from services.learner.replica import Replica  # noqa: E402

PLACE = place_of(os.environ)


def main(results: str, modes: list[str]) -> None:
    found: dict[str, Any] = {}
    for mode in modes:
        ranks = JoinedRanks(PLACE, torch.device("cpu"), MODES[mode])
        of_kinds = {name: (make, OBJECTIVES["kl in the loss"]) for name, make in POLICIES.items()}
        of_objectives = {name: (policy_of, objective) for name, objective in OBJECTIVES.items()}
        for name, (make, objective) in {**of_objectives, **of_kinds}.items():
            # Another seed on the other rank: it must begin with rank 0's weights all the same.
            policy = spread_policy(make(PLACE.rank), ranks, MODES[mode])
            replica = replica_of(policy, ranks)
            checkpoints = store_in(Path(results).parent, f"{mode}-{name}".replace(" ", "-"))
            if not PLACE.leads:
                follow(replica, ranks, OwnFiles(checkpoints, Path("unused"), ranks.beside), lambda: False)
                continue
            found[f"{mode}/{name}"] = run(replica, objective, checkpoints)
            replica.dismiss()
        found[f"{mode}/faults"] = faults(ranks, mode, store_in(Path(results).parent, "faults"))
    if PLACE.leads:
        torch.save(found, results)
    ranks.leave()


def faults(ranks: JoinedRanks, mode: str, checkpoints: CheckpointStore) -> dict[str, object]:
    """A loss that is not finite on one rank, and a stop that rank 0 alone hears of: nothing changes anywhere."""
    objective = OBJECTIVES["grpo"]
    asked = iter([False, True, True])
    policy = spread_policy(policy_of(), ranks, MODES[mode])
    replica = replica_of(policy, ranks)
    out: dict[str, object] = {}
    files = OwnFiles(checkpoints, Path("unused"), ranks.beside)
    if not PLACE.leads:
        follow(replica, ranks, files, lambda: False)
    else:
        out["not finite"] = refused(replica, broken(batch(objective)), lambda: False)
        out["stop"] = refused(replica, batch(objective), lambda: next(asked, True))
        replica.dismiss()
    before = {name: tensor.tolist() for name, tensor in policy_of().named_tensors().items()}
    out["untouched"] = _whole(policy) == before
    if not PLACE.leads:
        follow(replica, ranks, files, lambda: False)
    else:
        replica.take(batch(objective), objective, 1e-2, 0.0)
        replica.dismiss()
    after = _whole(policy)
    out["then learnt"] = after != before
    out["same everywhere"] = ranks.most(int(after != ranks.share(after))) == 0
    return out


def refused(replica: Replica, data: Batch, should_stop: Callable[[], bool]) -> str:
    try:
        replica.take(data, OBJECTIVES["grpo"], 1e-2, 0.0, should_stop=should_stop)
    except (NonFiniteStepError, StepAbandonedError) as error:
        return str(error)
    return "taken"


def broken(data: Batch) -> Batch:
    """The sampler of the shortest row's worst attempt is wrong beyond all measure: e to its gap overflows."""
    row = min(data.rows, key=lambda row: row.length)
    wrong = replace(row.branches[0], logprobs=row.branches[0].logprobs - 3000)
    fixed = replace(row, branches=(wrong, *row.branches[1:]))
    return replace(data, rows=tuple(fixed if other is row else other for other in data.rows))


def _whole(policy: PolicyModel) -> dict[str, Any]:
    """By all ranks."""
    return {name: whole(tensor).tolist() for name, tensor in policy.named_tensors().items()}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
