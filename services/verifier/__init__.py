"""Computes rewards: makes each instance again, checks the attempt in a killable child, says the verdict."""
