"""Writes the checkpoint of a step while the next one is taken.

Invariant: one checkpoint is on its way at a time; it is complete or nothing of it is left; what is announced and what
it says are made from the same copies.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Mapping

from torch import Tensor

from services.learner.checkpoint import CheckpointStore
from services.learner.deltas import DeltaPublisher
from services.learner.kept import KeepRule, Scores, kept_steps
from services.learner.publish import announcement
from services.learner.reference import ReferencePolicy, prune_references
from services.learner.replica import Replica
from services.learner.snapshot import Announcement, Snapshot
from services.learner.staging import HostCopies, Staged
from shared.contracts import Policy, encode
from shared.kill_points import reached
from shared.settings import Settings
from shared.storage import ObjectStore


class CheckpointWriter:
    """`take_copies` where steps are taken, `write` and `prune` in a thread of their own. All block."""

    def __init__(
        self, settings: Settings, store: ObjectStore, checkpoints: CheckpointStore, replica: Replica
    ) -> None:
        policy = replica.policy
        self._settings = settings
        self._store = store
        self._checkpoints = checkpoints
        self._replica = replica
        self._deltas = DeltaPublisher(store, settings.run.name, settings.publishing, policy.served)
        self._adapter = None if policy.adapters is None else policy.adapters.info
        self._references: dict[int, str] = {}
        """URI of the reference that the checkpoint of a step names."""
        self._weights = HostCopies()
        self._idle = threading.Event()
        self._idle.set()

    def resume(self, policy: Policy, weights: Mapping[str, Tensor]) -> None:
        """Goes on from a checkpoint's announcement and its weights."""
        self._deltas.resume(policy, weights)

    def wait(self) -> None:
        """Returns when no checkpoint is being written."""
        self._idle.wait()

    def take_copies(self, snapshot: Snapshot, reference: ReferencePolicy) -> Staged:
        """What the checkpoint of `snapshot` is written from. The one before it must have been written."""
        at, replica = snapshot.progress, self._replica
        self._idle.clear()
        return Staged(
            snapshot=snapshot,
            weights=self._weights.of(replica.served()),
            canary=replica.canary(self._settings.learner.canary_tolerance),
            reference=reference.freeze(at.stage_index, at.stage_step),
            # Last: the other ranks begin to write at once.
            optimizer=replica.stage_optimizer(at.step),
        )

    def write(self, staged: Staged) -> Announcement:
        """Raises `StorageError` and `RankLostError`; nothing of the checkpoint is left then."""
        began, step = time.perf_counter(), staged.snapshot.progress.step
        try:
            policy = self._write(staged, step)
        except BaseException:
            self._checkpoints.discard(step)
            raise
        finally:
            self._idle.set()
        return Announcement(policy, staged.snapshot.steps, time.perf_counter() - began)

    def _write(self, staged: Staged, step: int) -> Policy:
        snapshot, made_by = staged.snapshot, staged.snapshot.made_by
        # First, as the other ranks wait for this one; what goes wrong on one of them ends the write here.
        optimizer = self._checkpoints.write_optimizer(step, staged.optimizer, self._replica.beside)
        reached("mid_checkpoint", step)
        weights = self._checkpoints.write_weights(step, staged.weights, self._adapter)
        policy = announcement(
            self._settings,
            step=step,
            stage=self._settings.stages[made_by.stage_index].kind,
            stage_index=made_by.stage_index,
            weights=weights,
            deltas=self._deltas.publish(step, made_by.stage_index, staged.weights, weights),
            canary=staged.canary,
            checkpoint_uri=self._checkpoints.uri(step),
        )
        state = {
            **snapshot.state,
            "policy": json.loads(encode(policy)),
            "steps": [json.loads(encode(record)) for record in snapshot.steps],
            "reference": staged.reference.store(self._store) if staged.reference else None,
        }
        reached("before_manifest", step)
        self._checkpoints.complete(step, weights, optimizer, state)
        return policy

    def prune(self, scores: Scores, spare: Collection[int]) -> list[int]:
        """Strips every checkpoint that the settings do not keep, and removes references that none of the rest names;
        the steps it was done to."""
        learner = self._settings.learner
        rule = KeepRule(learner.keep_checkpoints, learner.keep.every, learner.keep.best)
        self._deltas.prune()
        kept = kept_steps(self._checkpoints.held(), rule, scores, spare)
        gone = self._checkpoints.strip_all_but(kept)
        prune_references(self._store, self._settings.run.name, {self._reference_of(step) for step in kept})
        return gone

    def _reference_of(self, step: int) -> str:
        """Empty where the checkpoint names none."""
        if step not in self._references:
            state = self._checkpoints.state(step, self._checkpoints.manifest(step))
            self._references[step] = (state["reference"] or {}).get("uri", "")
        return self._references[step]
