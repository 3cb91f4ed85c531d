"""What the ranks other than 0 do: one command after another, until they are sent home.

Invariant: a follower decides nothing and holds no Kafka client; of checkpoints it writes and reads its own part of the
optimizer's state, when it is told. Whatever goes wrong here ends its process, and with it the group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from services.learner.checkpoint import CheckpointStore
from services.learner.distributed import commands
from services.learner.distributed.opening import open_policy
from services.learner.distributed.own_files import OwnFiles
from services.learner.distributed.place import Place
from services.learner.distributed.ranks import RankLostError, Ranks
from services.learner.gradient import StepAbandonedError
from services.learner.replica import Replica
from shared.settings import Settings
from shared.storage import ObjectStore
from shared.storage.remote import Patience


def follow_run(
    settings: Settings, place: Place, opened: Callable[[], None], stopping: Callable[[], bool]
) -> None:
    """Blocking. Opens the policy beside the other ranks, says so, and follows. Raises as `open_policy` and `follow`."""
    policy, ranks = open_policy(settings, place)
    opened()
    store = ObjectStore(settings.storage_uri, Patience(settings.storage.patience_s))
    files = OwnFiles(
        CheckpointStore(store, settings.run.name), Path(settings.run_folder) / "cache", ranks.beside
    )
    follow(Replica(policy, settings.learner, ranks), ranks, files, stopping)
    ranks.leave()


def follow(replica: Replica, ranks: Ranks, files: OwnFiles, stopping: Callable[[], bool]) -> None:
    """Blocking. Returns when rank 0 says so, or is gone after a stop was asked for.

    Raises `RankLostError` where it is gone without one, and `StorageError` where this rank's files failed.
    """
    try:
        while True:
            command = ranks.heard()
            if isinstance(command, commands.Leave):
                files.wait()
                return
            obey(replica, files, command)
    except RankLostError:
        if not stopping():
            raise


def obey(replica: Replica, files: OwnFiles, command: commands.Command) -> None:
    """Runs the method of which `command` speaks; results are rank 0's."""
    match command:
        case commands.Take():
            with contextlib.suppress(StepAbandonedError):  # it is the same on all, and rank 0 says so
                replica.take(
                    None,
                    command.objective,
                    command.learning_rate,
                    command.kl_coefficient,
                    judged=command.judged,
                )
        case commands.PutWeights():
            replica.put_weights({})
        case commands.ForgetMoments():
            replica.forget_moments()
        case commands.FreezeReference():
            replica.freeze_reference()
        case commands.PutReference():
            replica.put_reference({})
        case commands.DropReference():
            replica.drop_reference()
        case commands.GatherWeights():
            replica.weights()
        case commands.GatherServed():
            replica.served()
        case commands.StageOptimizer():
            files.wait()
            files.write(command.step, replica.stage_optimizer(command.step))
        case commands.LoadOptimizer():
            files.wait()  # one talk at a time in the group of ranks beside steps
            replica.load_optimizer(files.saved(command.folder, command.digests))
        case commands.Score():
            replica.canary(command.tolerance)
        case commands.Beat() | commands.Leave():
            pass
