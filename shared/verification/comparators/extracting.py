"""A comparator that first takes the answer out of a longer text.

Invariant: one answer or none. Where a text marks several, they must be the same value under the declared type. An
expected value is read by the same rules, or whole where it carries no marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from shared.verification.answers import Extraction, Refusal, extract
from shared.verification.comparators.base import Comparator, Comparison
from shared.verification.judgement import Judgement


@dataclass(frozen=True, slots=True)
class ExtractingComparator(Comparator[Any]):
    """`inner` on what `policy` takes out of each text."""

    kind: ClassVar[str] = "extracted answer"
    inner: Comparator[Any]
    policy: Extraction = "marked"

    def read(self, bare: str) -> Any:
        return self.inner.read(bare)

    def same(self, left: Any, right: Any) -> bool:
        return self.inner.same(left, right)

    def parse(self, text: str) -> Any:
        """The value of the one answer in `text`, or why there is none. Never raises."""
        found = self._one(text)
        return found if isinstance(found, Refusal) else self.inner.parse(found)

    def compare(self, left: str, right: str) -> Comparison:
        first, second = self._one(left), self._one(right)
        refusals = sorted(side.reason for side in (first, second) if isinstance(side, Refusal))
        if isinstance(first, Refusal) or isinstance(second, Refusal):
            return Comparison(False, "; ".join(refusals))
        return self.inner.compare(first, second)

    def judge(self, expected: str, answer: str) -> Judgement:
        """As the inner type judges. Raises `VerificationFault` where the expected value is unreadable."""
        wanted, found = self._one(expected), self._one(answer)
        if isinstance(wanted, Refusal):
            wanted = expected
        if isinstance(found, Refusal):
            self.inner.judge(wanted, wanted)
            return Judgement.failed(found.reason)
        return self.inner.judge(wanted, found)

    def _one(self, text: str) -> str | Refusal:
        """The text of the answer: the last of the candidates, where they agree."""
        candidates = extract(text, self.policy)
        if isinstance(candidates, Refusal):
            return candidates
        last = candidates[-1]
        for other in candidates[:-1]:
            if not self.inner.compare(other, last).equal:
                return Refusal(f"{len(candidates)} different answers are marked: an answer holds one")
        return last
