"""Which held-out instances a run is evaluated on: different questions, as many as are wanted where a domain has them.

Invariant: a pure function of (domain, difficulty, how many are wanted), so that every evaluation of a run, and a
restarted scheduler, asks the same ones; no two of them show the policy the same prompt and files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.scheduler.seeds import held_out_seed
from shared.domains.base import Domain, TooFewQuestionsError

DRAWS_PER_WANTED = 20
"""Of n equally likely questions n (ln n + 0.6) draws show each once: 20 for each that is wanted miss next to none that
is there, and a domain that takes 1.3 ms an instance ends after 1.7 s where 64 are wanted."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """`counters` are the numbers of the draws that are asked, ascending; each gives its seed by `held_out_seed`."""

    counters: tuple[int, ...]
    wanted: int
    draws: int

    def shortage(self, domain: str) -> str:
        """What is missing, in words; empty where nothing is."""
        if len(self.counters) >= self.wanted:
            return ""
        return (
            f"{domain}: {self.wanted} held-out instances wanted, {len(self.counters)} different ones found in "
            f"{self.draws} draws: raise its difficulty or lower evaluation.instances_per_domain"
        )


def draw_held_out(domain: Domain, difficulty: Mapping[str, Any], wanted: int) -> HeldOut:
    """The first `wanted` different ones, fewer where `DRAWS_PER_WANTED` times as many draws show no more. Blocking.

    Raises as `Domain.instance`; `TooFewQuestionsError` only where it is the first draw that finds nothing.
    """
    found: dict[str, int] = {}
    draws = 0
    while len(found) < wanted and draws < DRAWS_PER_WANTED * wanted:
        try:
            instance = domain.instance(held_out_seed(draws), difficulty)
        except TooFewQuestionsError:
            if not found:
                raise
            break  # each further draw would cost its thousand drafts too
        found.setdefault(instance.question(), draws)
        draws += 1
    return HeldOut(tuple(found.values()), wanted, draws)
