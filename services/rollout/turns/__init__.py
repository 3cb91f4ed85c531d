"""Attempts of many turns: the policy speaks, its tools answer, token by token as it was sampled."""
