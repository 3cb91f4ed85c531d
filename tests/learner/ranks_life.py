"""A learner of two ranks for the tests of its checkpoints: each rank in a process of its own, forked from one that has
read the libraries already, and checkpoints written beside steps as the service writes them."""

from __future__ import annotations

import os
import signal
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from learner_models import small_policy
from ranks_cases import written
from test_learner_resume import Life, log_of, run_settings

from services.learner import tensorfile
from services.learner.checkpoint import CheckpointStore
from services.learner.distributed.follower import follow
from services.learner.distributed.joined import JoinedRanks
from services.learner.distributed.opening import spread_policy
from services.learner.distributed.own_files import OwnFiles
from services.learner.distributed.place import Place
from services.learner.distributed.ranks import RankLostError
from services.learner.model import PolicyModel
from services.learner.replica import Replica
from services.learner.sharded import read_sharded
from services.learner.snapshot import Announcement
from shared.settings import ParallelSettings
from shared.storage import ObjectStore

RANKS = 2
BEYOND = 99
"""A step that no run here comes to."""


@dataclass(frozen=True)
class Wanted:
    """`folder`: of the run. `killed_at`: the step in the middle of whose checkpoint rank 1 dies. `until`: the last step
    that is taken; that of the newest checkpoint for none."""

    folder: Path
    shard: bool
    served: torch.dtype
    killed_at: int = 0
    until: int = BEYOND


@dataclass(frozen=True)
class Told:
    """By rank 0 at the end. `state`: bytes of every master weight and moment, whole; `versions`: written, in order."""

    state: dict[str, bytes]
    versions: list[int]
    failure: str = ""


def live(wanted: Wanted, rendezvous: Path) -> tuple[Told, list[int | None]]:
    """What rank 0 tells of the learner's life, and the exit codes of both."""
    context = get_context("forkserver")
    context.set_forkserver_preload(
        [
            "services.learner.trainer",
            "services.learner.distributed.follower",
            "transformers.models.llama.modeling_llama",
            "torch.distributed.fsdp",
        ]
    )
    ours, theirs = context.Pipe()
    arguments = (wanted, rendezvous, theirs)
    processes = [context.Process(target=_rank, args=(rank, *arguments), daemon=True) for rank in range(RANKS)]
    for process in processes:
        process.start()
    theirs.close()
    try:
        assert ours.poll(180), "rank 0 says nothing"
        told = ours.recv()
        assert isinstance(told, Told), told
        for process in processes:
            process.join(60)
        return told, [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()


def _rank(rank: int, wanted: Wanted, rendezvous: Path, pipe: Connection) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)
    parallel = ParallelSettings(shard=wanted.shard)
    ranks = JoinedRanks(Place(rank, RANKS), torch.device("cpu"), parallel)
    try:
        if rank == 0:
            pipe.send(_lead(wanted, ranks))
        else:
            _follow(wanted, ranks)
    except BaseException:
        pipe.send(traceback.format_exc())
        raise
    ranks.leave()


def _policy(wanted: Wanted, ranks: JoinedRanks, seed: int) -> PolicyModel:
    policy = small_policy(seed=seed)
    policy.served = wanted.served
    return spread_policy(policy, ranks, ParallelSettings(shard=wanted.shard))


class RankLife(Life):
    """Writes a checkpoint while the next step is taken."""

    def __init__(self, wanted: Wanted, ranks: JoinedRanks) -> None:
        super().__init__(run_settings(wanted.folder), log_of(), ranks=ranks)
        self._wanted = wanted
        self._disk = ThreadPoolExecutor(1)
        self._writing: Future[Announcement] | None = None

    def _policy(self, seed: int) -> PolicyModel:
        assert isinstance(self.ranks, JoinedRanks)
        return _policy(self._wanted, self.ranks, seed)

    def _step(self) -> None:
        while self.trainer.progress.step < self._wanted.until and self._one_step():
            pass

    def _checkpoint(self) -> None:
        self.settle()
        staged = self.trainer.take_copies(self.trainer.seal(self.positions))
        self._writing = self._disk.submit(self.trainer.write, staged)

    def settle(self) -> None:
        if self._writing is not None:
            self.told.append(self._writing.result())
            self.trainer.prune()

    def end(self) -> None:
        self._disk.shutdown()


def _lead(wanted: Wanted, ranks: JoinedRanks) -> Told:
    life = RankLife(wanted, ranks)
    try:
        # Where there is a checkpoint every byte comes from it.
        replica = life.live(seed=7 if (wanted.folder / "objects").exists() else 0).replica
        life.settle()
    except RankLostError as error:
        life.end()
        return Told({}, _versions(life), str(error))
    checkpoints = CheckpointStore(ObjectStore(life.settings.storage_uri), life.settings.run.name)
    moments = read_sharded(written(replica, checkpoints, BEYOND))
    checkpoints.discard(BEYOND)
    tensors = {**replica.weights(), **moments}
    replica.dismiss()
    return Told({name: tensor.numpy().tobytes() for name, tensor in tensors.items()}, _versions(life))


def _versions(life: Life) -> list[int]:
    return [announcement.policy.version for announcement in life.told]


class DeadlyStore(ObjectStore):
    """This process dies in the middle of its file of step `deadly`, with half of a tensor on the disk."""

    deadly = 0

    def local_path(self, key: str) -> Path | None:
        if self.deadly and f"/{self.deadly:08d}/" in key:
            tensorfile._write_all = _die
        return super().local_path(key)


def _die(descriptor: int, chunk: memoryview) -> None:
    os.write(descriptor, chunk[: len(chunk) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def _follow(wanted: Wanted, ranks: JoinedRanks) -> None:
    settings = run_settings(wanted.folder)
    store = DeadlyStore(settings.storage_uri)
    store.deadly = wanted.killed_at
    files = OwnFiles(CheckpointStore(store, settings.run.name), wanted.folder / "cache", ranks.beside)
    replica = Replica(_policy(wanted, ranks, seed=11), settings.learner, ranks)
    follow(replica, ranks, files, lambda: False)
