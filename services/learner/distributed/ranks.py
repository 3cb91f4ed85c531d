"""What the processes of a learner do together, and the learner that is alone.

Invariant: every method is called by all ranks in the same order; alone, each is what one rank sees of itself. Rank 0
leads: it tells the others what comes next, and they do nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torch import Tensor

from shared.errors import DependencyError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


class RankLostError(DependencyError):
    """Another process of this learner is gone or does not answer: the step cannot be taken."""


class Ranks(Protocol):
    """Ranks lie in a grid of data × context: those of one data index hold the same rows."""

    @property
    def count(self) -> int:
        """Of processes."""

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, or alone."""

    @property
    def rank(self) -> int:
        """This one's number, from 0."""

    @property
    def beside(self) -> ProcessGroup | None:
        """All ranks once more, for what goes on beside steps (writing a checkpoint); None alone."""

    @property
    def data(self) -> int:
        """Shares that a batch is cut into."""

    @property
    def data_index(self) -> int:
        """Whose share this rank has."""

    @property
    def speaks(self) -> bool:
        """Whether what this rank measured is counted: of ranks with the same rows, one."""

    @property
    def lockstep(self) -> bool:
        """Whether a forward or backward pass of one rank waits for the others (a sharded model, a spread sequence)."""

    def tell(self, command: Any) -> None:
        """By rank 0 to the others, who are at `heard`; on the others nothing."""

    def heard(self) -> Any:
        """The next command, on the other ranks. Raises `RankLostError`."""

    def scatter(self, shares: Sequence[T] | None) -> T:
        """Rank 0 gives one share a data index; each rank gets that of its own."""

    def gather(self, value: T) -> list[T]:
        """The values of the ranks that speak, in order, on rank 0; empty on the others."""

    def gather_everywhere(self, value: T) -> list[T]:
        """As `gather`, on every rank."""

    def share(self, value: T) -> T:
        """Rank 0's value."""

    def most(self, value: int) -> int:
        """The largest of all ranks' values."""

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Each parameter's gradient becomes the sum over all ranks; a missing one counts as 0. Shards are it already."""

    def give(self, tensor: Tensor) -> None:
        """In place: rank 0's values."""

    def watched(self) -> AbstractContextManager[None]:
        """Inside, what torch's own collectives (in the passes of a spread model) raise for a rank that is gone is
        `RankLostError`."""

    def leave(self) -> None:
        """Ends the group. Idempotent."""


class Alone:
    """One process."""

    count = 1
    leads = True
    rank = 0
    beside = None
    data = 1
    data_index = 0
    speaks = True
    lockstep = False

    def tell(self, command: Any) -> None: ...

    def heard(self) -> Any:
        raise RuntimeError("a learner that is alone has nobody to listen to")

    def scatter(self, shares: Sequence[T] | None) -> T:
        assert shares is not None
        return shares[0]

    def gather(self, value: T) -> list[T]:
        return [value]

    def gather_everywhere(self, value: T) -> list[T]:
        return [value]

    def share(self, value: T) -> T:
        return value

    def most(self, value: int) -> int:
        return value

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None: ...

    def give(self, tensor: Tensor) -> None: ...

    def watched(self) -> AbstractContextManager[None]:
        return nullcontext()

    def leave(self) -> None: ...
