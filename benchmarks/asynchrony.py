"""What asynchrony is worth: wall time, idle learner and staleness at `max_lag` 0 to 8, on answers of long-tailed lengths.

`python -m benchmarks.asynchrony [--quick]`. The same code runs in virtual time for every line: scheduler, admission,
intake and staleness rules are the services' own, only seconds are made up (`benchmarks/simulated`). `max_lag = 0` is
the synchronous mode. A fleet is one wave of rows a step, and could sample 1.5 times what its learner trains on: with
less, what is dropped as stale and what waits in an unlucky partition leaves the learner without work.

Wall time and idle share are counted from the end of the first step, so that no run is charged with filling its pipeline.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Any

from benchmarks.figures import figure, show
from benchmarks.long_tail import CALIBRATED, LONGER
from benchmarks.simulated.loop import Fleet, SimulatedLoop

WORKERS = (2, 8, 16, 64)
LAGS = (0, 1, 2, 4, 8)
STEPS = 24
SEEDS = 3
"""Runs of which a figure is the mean: in one, chance leaves a learner with 0 to 8 % idle where the mean is 3 %. Large
fleets take one: they are a mean by themselves, and minutes of a processor."""
LEAST_RATIO = 2.5
MOST_IDLE = 0.05


def measure(
    workers: Sequence[int] = WORKERS, lags: Sequence[int] = LAGS, steps: int = STEPS
) -> Iterator[dict[str, Any]]:
    """One figure a fleet and lag: how many times as fast as the synchronous mode."""
    for count in workers:
        yield from against_synchronous("asynchrony", Fleet(count), lags, steps)
    yield from oversampled(steps=steps)


def against_synchronous(
    name: str, fleet: Fleet, lags: Sequence[int], steps: int, **about: Any
) -> Iterator[dict[str, Any]]:
    """`lags` begins with 0: the others are held against it."""
    synchronous = 0.0
    for lag in lags:
        seeds = SEEDS if fleet.workers <= 16 else 1
        loops = [SimulatedLoop(fleet, lag, steps, seed) for seed in range(seeds)]
        every = [loop.run() for loop in loops]
        seconds = mean(told.wall_s for told in every) / (steps - 1)
        synchronous = synchronous or seconds
        yield figure(
            f"{name}.{fleet.workers}_workers_lag_{lag}",
            round(synchronous / seconds, 2),
            "times as fast as synchronous",
            virtual_seconds_a_step=round(seconds, 1),
            learner_idle_share=round(mean(told.idle_share for told in every), 3),
            rows_busy_share=round(mean(loop.rollout_busy_share for loop in loops), 2),
            staleness=_shares(sum((told.lags for told in every), Counter())),
            tokens=_shares(sum((told.tokens for told in every), Counter())),
            runs=seeds,
            attempts_a_step=fleet.groups_per_step * fleet.group_size,
            rows=fleet.workers * fleet.rows,
            supply=fleet.supply,
            **about,
        )


def oversampled(
    workers: int = 8, lags: Sequence[int] = (0, 1, 4), steps: int = STEPS, more: int = 2
) -> Iterator[dict[str, Any]]:
    """What `oversample` is worth: wall time of a step without it over that with it. Its price is in the tokens."""
    for name, lengths in (("measured", CALIBRATED), ("longer", LONGER)):
        for lag in lags:
            plain = SimulatedLoop(Fleet(workers, lengths=lengths), lag, steps).run()
            told = SimulatedLoop(Fleet(workers, lengths=lengths, oversample=more), lag, steps).run()
            yield figure(
                f"oversampling.{name}_lengths_lag_{lag}",
                round(plain.wall_s / told.wall_s, 2),
                "times as fast as without",
                attempts_more=more,
                group_size=Fleet(workers).group_size,
                workers=workers,
                tokens=_shares(told.tokens),
                tokens_without=_shares(plain.tokens),
            )


def _shares(counts: Any) -> dict[str, float]:
    """{key: share of all}, in the order of the keys."""
    total = sum(counts.values())
    return {str(key): round(counts[key] / total, 3) for key in sorted(counts)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two fleets, three lags")
    quick = parser.parse_args().quick
    lines = measure((2, 8), (0, 1, 4), 12) if quick else measure()
    for line in lines:
        show(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
