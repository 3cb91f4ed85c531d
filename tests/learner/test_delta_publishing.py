"""Deltas of a learner that is killed anywhere: a follower of what it announces always gets the checkpoint's bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_learner_resume import KilledError, Life, log_of, run_settings

from services.learner.checkpoint import MANIFEST, STATE, WEIGHTS
from services.rollout.pulling import PolicyPull
from shared.settings import Settings
from shared.storage import ObjectStore
from shared.storage.cache import ObjectCache


def small_steps(folder: Path) -> Settings:
    """Two stages at a rate that leaves most of bfloat16 as it was."""
    settings = run_settings(folder, publishing={"deltas": "always", "most_share": 1.0})
    stages = tuple(stage.model_copy(update={"learning_rate": 1e-5}) for stage in settings.stages)
    return settings.model_copy(update={"stages": stages})


@pytest.mark.parametrize(
    ("point", "step"),
    [("", 0), (WEIGHTS, 2), (STATE, 4), (MANIFEST, 4), ("before publishing", 4), ("after the step", 5)],
)
def test_a_follower_of_two_lives_gets_every_checkpoint(point: str, step: int, tmp_path: Path) -> None:
    settings = small_steps(tmp_path)
    store = ObjectStore(settings.storage_uri)
    lives = [Life(settings, log_of(), kill=point, at_step=step, served=torch.bfloat16)]
    if point:
        with pytest.raises(KilledError):
            lives[0].live()
        lives.append(Life(settings, log_of(), served=torch.bfloat16))
    trainer = lives[-1].live(seed=7 if point else 0)
    assert trainer.finished
    told: dict[int, Any] = {}
    for life in lives:
        for announcement in life.told:
            policy = announcement.policy
            known = told.setdefault(policy.version, policy)
            assert (known.weights, known.deltas) == (policy.weights, policy.deltas), "told again, the same"
    assert sorted(told) == list(range(6))
    # Versions 0 to 2 are of the first stage; every stage begins with full weights.
    assert [len(told[version].deltas) for version in range(6)] == [0, 1, 2, 0, 1, 2]
    newest = told[5]
    chain = [delta.uri for delta in newest.deltas]
    kept = [store.uri_of(key) for key in store.list(f"deltas/{settings.run.name}/")]
    assert kept == sorted(chain), "older chains are gone, the newest is whole"
    pull = PolicyPull(store, ObjectCache(tmp_path / "cache"))
    for version in (4, 5):  # the full weights of these are kept
        pulled = pull.get(told[version])
        assert pulled.path.read_bytes() == store.get_bytes(told[version].weights.uri)
        pull.served(told[version], pulled)
    assert pulled.way == "delta"
