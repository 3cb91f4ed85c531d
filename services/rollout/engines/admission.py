"""Which waiting requests join the batch.

Invariant: running rows × the longest of them never passes `max_tokens`, rows never pass `max_rows`; requests join in
the order in which they came, so none starves; and one that fits an empty batch always runs at last.

The product, not the sum, is bounded: the key-value block is a rectangle, and memory is what the limit is for.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    @property
    def tokens(self) -> int:
        """Key-value slots that it may come to need."""


T = TypeVar("T", bound=Sized)


class Admission(Generic[T]):
    def __init__(self, max_rows: int, max_tokens: int) -> None:
        self.max_rows = max_rows
        self.max_tokens = max_tokens
        self._waiting: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, request: T) -> None:
        """The caller has refused what can never fit (`request.tokens` > `max_tokens`)."""
        self._waiting.append(request)

    def take(self, rows: int, longest: int) -> list[T]:
        """What joins a batch of `rows` rows whose longest may need `longest` slots."""
        taken: list[T] = []
        while self._waiting:
            longest = max(longest, self._waiting[0].tokens)
            if rows + 1 > self.max_rows or (rows + 1) * longest > self.max_tokens:
                break
            taken.append(self._waiting.popleft())
            rows += 1
        return taken

    def discard(self, gone: list[T]) -> None:
        """Forgets requests that nobody waits for any more."""
        if gone:
            names = {id(request) for request in gone}
            self._waiting = deque(request for request in self._waiting if id(request) not in names)

    def waiting(self) -> list[T]:
        return list(self._waiting)
