"""What every comparator keeps.

Invariant: `compare(a, b)` and `compare(b, a)` agree, and no text makes either raise or take long: the length is
capped before anything is parsed, and every pattern is linear.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from shared.errors import VerificationFault
from shared.verification.answers import Refusal, read_answer, shown
from shared.verification.judgement import Judgement

if TYPE_CHECKING:
    from shared.verification.comparators.formula.limits import Work

T = TypeVar("T")


def unevaluated(answer: str) -> Judgement:
    return Judgement.failed(f"not evaluated: {shown(answer.strip())}")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether two answers are equal under a declared type, and why not."""

    equal: bool
    reason: str = ""


class Comparator(ABC, Generic[T]):
    """One declared type: how an answer of it reads, and when two are the same."""

    kind: ClassVar[str]
    max_chars: ClassVar[int] = 256
    """A longer answer is refused unread."""

    @abstractmethod
    def read(self, bare: str) -> T | Refusal:
        """The value of a bare, non-empty answer of at most `max_chars` characters. Never raises."""

    @abstractmethod
    def same(self, left: T, right: T) -> bool:
        """Symmetric, on values that `read` returned."""

    def within(self, pool: Work) -> Comparator[T]:
        """The same type, drawing on `pool` where a value may be costly: for types made of many values."""
        return self

    def undone(self, expected: T, found: T) -> bool:
        """Whether `found`, though it equals `expected`, leaves to others the work that was asked for."""
        return False

    def parse(self, text: str) -> T | Refusal:
        """The value that `text` declares, or why it declares none. Never raises."""
        bare = read_answer(text, self.max_chars)
        return bare if isinstance(bare, Refusal) else self.read(bare)

    def compare(self, left: str, right: str) -> Comparison:
        """Two answers of the same standing. An unreadable one equals nothing, itself included."""
        first, second = self.parse(left), self.parse(right)
        refusals = sorted(side.reason for side in (first, second) if isinstance(side, Refusal))
        if isinstance(first, Refusal) or isinstance(second, Refusal):
            return Comparison(False, "; ".join(refusals))
        if self.same(first, second):
            return Comparison(True)
        return Comparison(False, f"two different answers of type {self.kind}")

    def judge(self, expected: str, answer: str) -> Judgement:
        """The verdict on `answer`: passed or failed, with a reason that does not hold the expected value.

        Raises `VerificationFault` where the expected value itself is not of this type: that is our mistake.
        """
        wanted = self.parse(expected)
        if isinstance(wanted, Refusal):
            raise VerificationFault(
                f"the expected {self.kind} is unreadable: {wanted.reason}; mend the domain"
            )
        found = self.parse(answer)
        if isinstance(found, Refusal):
            return Judgement.failed(found.reason)
        if self.same(wanted, found):
            return unevaluated(answer) if self.undone(wanted, found) else Judgement.passed()
        return Judgement.failed(f"wrong {self.kind}: {shown(answer.strip())}")
