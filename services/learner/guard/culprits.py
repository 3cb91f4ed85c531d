"""Which trajectories put a metric where it is.

Invariant: for a mean over tokens the parts are exact: the excesses over the limit, each times its tokens, sum to the
excess of the mean times all tokens. What is not finite comes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from services.learner.guard.bounds import Bound
from services.learner.guard.facts import MEANS, Contribution


def excess(
    contribution: Contribution, bound: Bound, baseline: float = 0.0, value: float = 0.0
) -> float | None:
    """How much this trajectory adds to what is out of bounds; None where it says nothing of the metric.

    `baseline` is the recent mean and `value` the jump, for `reward_jump`.
    """
    if bound.metric == "reward_jump":
        if contribution.reward is None:
            return None
        return math.copysign(1.0, value) * (contribution.reward - baseline)
    if bound.metric == "not_finite":
        wrong = sum(not math.isfinite(number) for number in contribution.values.values())
        return float(wrong) if wrong else None
    own = contribution.values.get(bound.metric)
    if own is None:
        return None
    if not math.isfinite(own):
        return math.inf
    if bound.metric in MEANS:
        beyond = own - bound.limit if bound.side == "above" else bound.limit - own
        return beyond * contribution.tokens
    # A share of Σw² drags the effective sample size down the more the larger it is.
    falls = bound.side == "below" and bound.metric != "effective_sample_size"
    return -own if falls else own


def culprits(
    contributions: Iterable[Contribution],
    bound: Bound,
    count: int,
    *,
    domain: str = "",
    baseline: float = 0.0,
    value: float = 0.0,
) -> tuple[str, ...]:
    """The `count` trajectories that contributed most, the worst first; equal ones by name."""
    found: Sequence[tuple[float, str]] = sorted(
        (-part, contribution.trajectory_id)
        for contribution in contributions
        if (not domain or contribution.domain == domain)
        and (part := excess(contribution, bound, baseline, value)) is not None
    )
    # Who pulls towards the limit is no cause. Where everyone does (norms, maxima) the largest still are.
    beyond = [name for part, name in found if part < 0]
    return tuple((beyond or [name for _, name in found])[:count])
