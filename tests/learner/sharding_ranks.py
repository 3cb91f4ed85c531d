"""What two ranks do in the tests of sharded checkpoints, in processes of their own."""

from __future__ import annotations

import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

RANKS = 2


def full_tensors() -> dict[str, Any]:
    """Shapes that two ranks cannot halve, a scalar, and another dtype."""
    import torch

    draw = torch.Generator().manual_seed(5)
    return {
        "exp_avg.wide": torch.randn(7, 4, generator=draw),
        "exp_avg.thin": torch.randn(3, generator=draw),
        "exp_avg.half": torch.randn(4, 6, generator=draw).to(torch.bfloat16),
        "step.wide": torch.tensor(3.0),
    }


def on_ranks(action: str, place: Path, files: dict[str, str] | None = None) -> list[Any]:
    """Runs `action` on every rank; what each returned, by rank."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.checkpoint"])
    pipes, processes = [], []
    for rank in range(RANKS):
        ours, theirs = context.Pipe()
        process = context.Process(target=_rank, args=(rank, action, place, files, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        answers = []
        for pipe in pipes:
            assert pipe.poll(180), "a rank says nothing"
            answers.append(pipe.recv())
        for error, _ in answers:
            assert not error, error
        return [answer for _, answer in answers]
    finally:
        for process in processes:
            process.join(20)
            process.kill()


def _rank(rank: int, action: str, place: Path, files: dict[str, str] | None, pipe: Connection) -> None:
    try:
        pipe.send(("", _act(rank, action, place, files)))
    except BaseException:
        pipe.send((traceback.format_exc(), None))


def _act(rank: int, action: str, place: Path, files: dict[str, str] | None) -> Any:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from services.learner.sharded import SavedShards, load_sharded, save_sharded
    from shared.errors import StorageError
    from shared.storage import ObjectStore

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{place}/{action}.rendezvous", rank=rank, world_size=RANKS
    )
    mesh = init_device_mesh("cpu", (RANKS,))
    store = ObjectStore(f"file://{place}")
    whole = full_tensors()

    def sharded(dimension: int) -> dict[str, Any]:
        return {
            name: distribute_tensor(tensor, mesh, [Shard(min(dimension, tensor.ndim - 1))])
            if tensor.ndim
            else tensor
            for name, tensor in whole.items()
        }

    try:
        if action == "save":
            written = save_sharded(store, "two", "optimizer", sharded(0), dist.group.WORLD)
            return {name: file.sha256 for name, file in written.items()}
        if action == "load":
            target = {name: torch.zeros_like(tensor) for name, tensor in sharded(1).items()}
            saved = SavedShards(store, "any", "optimizer", files or {}, place / "cache")
            load_sharded(saved, target, dist.group.WORLD)
            return all(torch.equal(_full(target[name]), tensor) for name, tensor in whole.items())
        if action == "fail":
            if rank == 1:
                (place / "two-broken").write_text("in the way")
            dist.barrier()
            try:
                save_sharded(store, "two-broken", "optimizer", sharded(0), dist.group.WORLD)
            except StorageError as error:
                return str(error)
        return None
    finally:
        dist.destroy_process_group()


def _full(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
