"""What an announcement of weights says: where they are, what they hash to, and how to recognise them.

Invariant (8 of the design): the canary is computed from the weights that were written, in the precision in which
they are served, on sequences that follow from the vocabulary alone.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from services.learner.model import PolicyModel
from shared.contracts import Canary, DeltaRef, Policy, Stage, WeightsRef
from shared.settings import Settings

CANARY_SEQUENCES = 4
CANARY_LENGTH = 16
BFLOAT16_TOLERANCE = 0.25
"""Of served bfloat16: 8 bits of mantissa over some twenty layers and logits of ten and more."""


def canary_ids(vocabulary: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """int32[CANARY_SEQUENCES, CANARY_LENGTH]: the same for every version of a model."""
    numbers = np.random.Generator(np.random.PCG64(vocabulary))
    return numbers.integers(0, vocabulary, (CANARY_SEQUENCES, CANARY_LENGTH), dtype=np.int32)


def make_canary(policy: PolicyModel, tolerance: float) -> Canary:
    """The canary of the policy as it is now."""
    ids = canary_ids(policy.vocabulary)
    training = policy.model.training
    policy.model.eval()
    try:
        scores = [policy.score(torch.from_numpy(row).long().to(policy.device)) for row in ids]
    finally:
        policy.model.train(training)
    return Canary(
        token_ids=ids.reshape(-1),
        lengths=np.full(CANARY_SEQUENCES, CANARY_LENGTH, dtype=np.int32),
        logprobs=torch.cat(scores).numpy(),
        tolerance=tolerance if policy.served is torch.float32 else max(tolerance, BFLOAT16_TOLERANCE),
    )


def announcement(
    settings: Settings,
    *,
    step: int,
    stage: Stage,
    stage_index: int,
    weights: WeightsRef,
    canary: Canary,
    checkpoint_uri: str,
    deltas: tuple[DeltaRef, ...] = (),
) -> Policy:
    """The message that makes a version known. The version is the number of steps that made it."""
    return Policy(
        run_id=settings.run.name,
        version=step,
        step=step,
        stage=stage,
        stage_index=stage_index,
        weights=weights,
        deltas=deltas,
        canary=canary,
        checkpoint_uri=checkpoint_uri,
        model_uri=settings.model.path,
        created_ms=int(time.time() * 1000),
    )
