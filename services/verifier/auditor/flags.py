"""What the auditor says about attempts, beside the flags that detectors find in one attempt."""

from __future__ import annotations

from enum import StrEnum


class AuditFlag(StrEnum):
    """Names that travel on rewards; never reused for something else."""

    CHECKS_DISAGREE = "checks_disagree"
    """Two checks of this very attempt came to different verdicts. Never paid."""
    DUPLICATE_ANSWERS = "duplicate_answers"
    """Most of its group gave this same long answer: the policy recites, or the group cannot tell attempts apart."""
    REWARD_FOLLOWS_LENGTH = "reward_follows_length"
    """In this domain, lately, the reward could be told from the length alone."""
    PASS_RATE_JUMP = "pass_rate_jump"
    """In this domain the pass rate has just jumped further than learning explains."""
