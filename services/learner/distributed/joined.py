"""The processes of a learner, joined by `torch.distributed`.

Invariant: commands and small objects travel over gloo whatever computes; tensors over the device's own back end (NCCL
for CUDA). A rank that is gone ends every call of the others with `RankLostError`: at once where its connections are
closed, else within the timeout.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from services.learner.distributed.place import Place
from services.learner.distributed.ranks import RankLostError
from shared.settings import ParallelSettings

T = TypeVar("T")

BUCKET_BYTES = 32 << 20
"""Gradients are summed in pieces of this size: few enough calls, and little memory beside the gradients."""


class JoinedRanks:
    """See `Ranks`. Waits until all are there. Raises `RankLostError` where they do not come."""

    def __init__(self, place: Place, device: torch.device, parallel: ParallelSettings) -> None:
        self._place = place
        self._device = device
        cuda = device.type == "cuda"
        if cuda:
            torch.cuda.set_device(device)
        with _losses(place):
            if not dist.is_initialized():
                dist.init_process_group(
                    "cpu:gloo,cuda:nccl" if cuda else "gloo",
                    rank=place.rank,
                    world_size=place.ranks,
                    timeout=timedelta(seconds=parallel.timeout_s),
                )
            self.mesh: DeviceMesh = init_device_mesh(
                device.type,
                (place.ranks // parallel.context, parallel.context),
                mesh_dim_names=("data", "context"),
            )
            self._control = dist.new_group(backend="gloo", timeout=timedelta(seconds=parallel.timeout_s))
            self.beside = dist.new_group(backend="gloo", timeout=timedelta(seconds=parallel.timeout_s))
        self.lockstep = parallel.shard or parallel.context > 1
        self._sharded = parallel.shard
        self._context = parallel.context
        self._here = True

    @property
    def count(self) -> int:
        return self._place.ranks

    @property
    def leads(self) -> bool:
        return self._place.leads

    @property
    def rank(self) -> int:
        return self._place.rank

    @property
    def data(self) -> int:
        return self.count // self._context

    @property
    def data_index(self) -> int:
        return self._place.rank // self._context

    @property
    def speaks(self) -> bool:
        return self._place.rank % self._context == 0

    def tell(self, command: Any) -> None:
        if self.leads:
            self.share(command)

    def heard(self) -> Any:
        return self.share(None)

    def scatter(self, shares: Sequence[T] | None) -> T:
        out: list[Any] = [None]
        each = None if shares is None else [shares[rank // self._context] for rank in range(self.count)]
        with _losses(self._place):
            dist.scatter_object_list(out, each, src=0, group=self._control)
        found: T = out[0]
        return found

    def gather(self, value: T) -> list[T]:
        out: list[Any] | None = [None] * self.count if self.leads else None
        with _losses(self._place):
            dist.gather_object(value, out, dst=0, group=self._control)
        return [] if out is None else out[:: self._context]

    def gather_everywhere(self, value: T) -> list[T]:
        out: list[Any] = [None] * self.count
        with _losses(self._place):
            dist.all_gather_object(out, value, group=self._control)
        return out[:: self._context]

    def share(self, value: T) -> T:
        box: list[Any] = [value]
        with _losses(self._place):
            dist.broadcast_object_list(box, src=0, group=self._control)
        found: T = box[0]
        return found

    def most(self, value: int) -> int:
        number = torch.tensor(value, dtype=torch.int64)
        with _losses(self._place):
            dist.all_reduce(number, dist.ReduceOp.MAX, group=self._control)
        return int(number)

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        if self._sharded:
            return  # summed shard by shard in the backward pass
        for bucket in _buckets(parameters):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            with _losses(self._place):
                dist.all_reduce(flat)
            parts = torch.split(flat, [gradient.numel() for gradient in bucket])
            for gradient, part in zip(bucket, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def give(self, tensor: Tensor) -> None:
        whole = tensor.contiguous()
        with _losses(self._place):
            dist.broadcast(whole, src=0)
        if whole is not tensor:
            tensor.copy_(whole)

    def watched(self) -> contextlib.AbstractContextManager[None]:
        return _losses(self._place)

    def leave(self) -> None:
        if self._here:
            self._here = False
            with contextlib.suppress(RuntimeError):  # the others may be gone already
                dist.destroy_process_group()


def _buckets(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one dtype in pieces of about BUCKET_BYTES; the same on every rank, as every parameter has one."""
    held: list[Tensor] = []
    size = 0
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradient = parameter.grad
        if held and (size >= BUCKET_BYTES or held[0].dtype != gradient.dtype):
            yield held
            held, size = [], 0
        held.append(gradient)
        size += gradient.numel() * gradient.element_size()
    if held:
        yield held


@contextlib.contextmanager
def _losses(place: Place) -> Iterator[None]:
    """What `torch.distributed` raises when a peer does not answer, in one line."""
    try:
        yield
    except (dist.DistError, RuntimeError) as error:
        if not is_loss(error):
            raise
        raise lost(place.rank, error) from error


def is_loss(error: BaseException) -> bool:
    """gloo has no type of its own for a closed connection and for its timeout."""
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "Connection" in str(error)


def lost(rank: int, error: BaseException) -> RankLostError:
    """The same in one line."""
    said = re.search(r"\] ([A-Z][^.\n]*)", str(error))  # behind gloo's place in its source
    cause = said.group(1) if said else next(iter(str(error).splitlines()), type(error).__name__)
    return RankLostError(
        f"rank {rank} of the learner lost another one ({cause[:160]}): all of them end and start again from the newest "
        "checkpoint"
    )
