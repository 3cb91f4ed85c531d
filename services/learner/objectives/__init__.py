"""Objectives: what one optimizer step minimises, as small pure functions.

Invariant: no function here knows how a batch was cut into micro-batches. Every normalisation is a weight per
token that was computed over the whole batch (global denominators), so the sum over micro-batches is the loss.
"""
