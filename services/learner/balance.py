"""Work in shares of about equal cost: micro-batches under a budget of padded tokens, and parts for ranks.

Invariant: every item is in exactly one share, and the shares depend on nothing but the numbers given: equal batches
are cut equally after a restart and on every rank.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def balance(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Indices of `lengths` in `parts` shares (some may be empty), each ascending, whose sums are about equal.

    Longest first to whoever has least (Graham 1969): the largest sum is at most 4/3 of the best possible one, and no
    two sums differ by more than the longest length. Raises `ValueError` for fewer than one part.
    """
    if parts < 1:
        raise ValueError(f"{parts} parts: give at least 1")
    shares: list[list[int]] = [[] for _ in range(parts)]
    # Equal sums go to the share with fewer items, so that lengths of 0 spread too.
    least = [(0, 0, part) for part in range(parts)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        total, count, part = heapq.heappop(least)
        shares[part].append(index)
        heapq.heappush(least, (total + lengths[index], count + 1, part))
    return [sorted(share) for share in shares]


def cut_evenly(units: Sequence[tuple[int, int]], budget: int) -> list[list[int]]:
    """Indices of `units`, each (rows, longest row), in as few micro-batches as a padded size of `budget` allows.

    Units are taken from the longest down, so neighbours are padded little. A micro-batch's size is rows × longest; a
    unit that is larger by itself is alone. Of all such cuts into as few, the one whose largest is smallest: the last
    micro-batch is not a remnant, and the memory of a step is what the batch needs, not what the budget allows.
    """
    order = sorted(range(len(units)), key=lambda i: (-units[i][1], i))
    fewest = len(_filled(units, order, budget))
    low, high = 1, budget
    while low < high:
        middle = (low + high) // 2
        if len(_filled(units, order, middle)) <= fewest:
            high = middle
        else:
            low = middle + 1
    return _filled(units, order, low)


def _filled(units: Sequence[tuple[int, int]], order: Sequence[int], capacity: int) -> list[list[int]]:
    """Each micro-batch as full as it goes, in this order; no other cut in this order has fewer."""
    cuts: list[list[int]] = []
    rows = longest = 0
    for index in order:
        more, length = units[index]
        if cuts and longest * (rows + more) <= capacity:
            cuts[-1].append(index)
            rows += more
        else:
            cuts.append([index])
            rows, longest = more, length
    return cuts
