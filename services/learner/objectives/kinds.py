"""The choices that an objective is made of, by name.

Invariant: names alone. A configuration is checked on machines without torch, before anything is started; what a name
computes is in the module that reads it.
"""

from __future__ import annotations

from typing import Literal

ObjectiveKind = Literal["imitation", "preference", "policy"]
AdvantageKind = Literal["group_zscore", "group_centered", "leave_one_out", "raw"]
BatchNormKind = Literal["none", "attempts", "tokens"]
AggregationKind = Literal["token_mean", "sequence_mean", "sequence_sum", "sequence_sum_constant"]
RatioKind = Literal["token", "sequence"]
SurrogateKind = Literal["clip", "weighted_likelihood", "likelihood", "probability_gap"]
CorrectionKind = Literal["none", "truncated", "truncated_sequence", "masked", "masked_sequence"]
KlKind = Literal["k1", "k2", "k3", "absolute", "k3_k2_gradient"]
KlPlace = Literal["loss", "reward"]
"""In the loss it has a gradient of its own; in the reward it lowers the advantage of what was sampled."""
PreferenceKind = Literal["sigmoid", "squared"]
