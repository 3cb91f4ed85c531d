"""Records that nothing can be learnt from, whatever the stage and the policy are by now.

Invariant: what is named here is refused by `attempts.refuse` too, so a record becomes a dead letter for whoever looks,
and its slot still ends with a fate.
"""

from __future__ import annotations

import sys

from services.learner.guard.bad_data import Tokens, check_sequence
from services.learner.intake.intake import Intake
from shared.contracts import Reward, Trajectory


def unfit(message: Trajectory | Reward, intake: Intake, vocabulary: int) -> str:
    """Why in words; empty where it may be of use. Staleness, lengths and temperatures are not asked about: they are
    wrong at a time or in a stage, not in themselves."""
    misplaced = intake.misplaced(message)
    if misplaced or isinstance(message, Reward):
        return misplaced
    for sequence in message.sequences:
        found = check_sequence(
            Tokens(sequence.token_ids, sequence.loss_mask, sequence.logprobs, sequence.versions()),
            vocabulary=vocabulary,
            version=sys.maxsize,
            sampled=message.sampling_mode != "demonstration",
        )
        if found:
            return found.reason
    return ""
