"""Rollout: the policy attempts tasks.

Invariant: what was sampled is stored as ids with their log-probabilities under the weights that sampled them, and
nothing is sampled with weights that were not attested.
"""
