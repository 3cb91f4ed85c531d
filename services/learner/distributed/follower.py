"""What the ranks other than 0 do: one command after another, until they are sent home.

Invariant: a follower decides nothing and reads nothing but the model's folder; it holds no Kafka client and no
checkpoint. Whatever goes wrong here ends its process, and with it the group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from services.learner.distributed import commands
from services.learner.distributed.ranks import RankLostError, Ranks
from services.learner.replica import Replica
from services.learner.step import StepAbandonedError


def follow(replica: Replica, ranks: Ranks, stopping: Callable[[], bool]) -> None:
    """Blocking. Returns when rank 0 says so, or is gone after a stop was asked for.

    Raises `RankLostError` where it is gone without one.
    """
    try:
        while True:
            command = ranks.heard()
            if isinstance(command, commands.Leave):
                return
            obey(replica, command)
    except RankLostError:
        if not stopping():
            raise


def obey(replica: Replica, command: commands.Command) -> None:
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
        case commands.PutMoments():
            replica.put_moments({}, some=command.some)
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
        case commands.GatherMoments():
            replica.moments()
        case commands.Score():
            replica.canary(command.tolerance)
        case commands.Beat() | commands.Leave():
            pass
