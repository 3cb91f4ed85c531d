"""Search among short texts by the words they share with a query.

Invariant: deterministic; equal scores are in the order in which the texts were added.

Source: Robertson and Zaragoza, "The probabilistic relevance framework: BM25 and beyond", 2009; k1 = 1.2, b = 0.75, and
the inverse document frequency with one added inside the logarithm, so that no word counts against a text.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter

_WORD = re.compile(r"\w+")
K1, B = 1.2, 0.75


class Bm25:
    """An inverted index: a query costs what the texts with its words cost."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._total = 0
        self._places: dict[str, list[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, text: str) -> int:
        """Its number."""
        number = len(self._lengths)
        counts = Counter(words(text))
        for word, count in counts.items():
            self._places.setdefault(word, []).append((number, count))
        self._lengths.append(sum(counts.values()))
        self._total += self._lengths[-1]
        return number

    def search(self, query: str, most: int) -> list[tuple[int, float]]:
        """Numbers and scores of the best, best first; only those that share a word with the query."""
        scores: dict[int, float] = {}
        mean = self._total / len(self._lengths) if self._total else 1.0
        for word in dict.fromkeys(words(query)):
            places = self._places.get(word, [])
            rarity = math.log(1 + (len(self._lengths) - len(places) + 0.5) / (len(places) + 0.5))
            for number, count in places:
                damped = count + K1 * (1 - B + B * self._lengths[number] / mean)
                scores[number] = scores.get(number, 0.0) + rarity * count * (K1 + 1) / damped
        return heapq.nsmallest(most, scores.items(), key=lambda item: (-item[1], item[0]))


def words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
