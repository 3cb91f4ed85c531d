"""A learner that publishes and a process that follows, without a broker between them: real weights, real steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.learner.checkpoint import WEIGHTS, CheckpointStore
from services.learner.deltas import DeltaPublisher
from services.rollout.pulling import PolicyPull, Pulled
from shared.contracts import Canary, Policy
from shared.storage import ObjectStore
from shared.storage.cache import ObjectCache
from shared.weights.settings import PublishingSettings
from tests.learner.learner_models import VOCABULARY, small_policy

RUN = "run"


class Publisher:
    """Steps of AdamW on a small model, each published as a version: checkpoint, delta, announcement."""

    def __init__(
        self, store: ObjectStore, *, dtype: torch.dtype = torch.bfloat16, rate: float = 1e-5, **settings: Any
    ) -> None:
        self.store = store
        self.policy = small_policy(width=64)
        self.policy.served = dtype
        self.optimizer = torch.optim.AdamW(self.policy.model.parameters(), lr=rate, weight_decay=0.0)
        self.settings = PublishingSettings(**{"deltas": "always", **settings})
        self.deltas = DeltaPublisher(store, RUN, self.settings, dtype)
        self.checkpoints = CheckpointStore(store, RUN)
        self.version = -1
        self.newest: Policy | None = None

    def step(self) -> None:
        ids = torch.randint(0, VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(self.version))
        self.policy.model(input_ids=ids, labels=ids).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def publish(self, stage_index: int = 0) -> Policy:
        """The next version, after a step unless it is the first."""
        if self.version >= 0:
            self.step()
        self.version += 1
        tensors = self.policy.published_tensors()
        weights = self.checkpoints.write_weights(self.version, tensors)
        empty = np.zeros(0, dtype=np.int32)
        self.newest = Policy(
            run_id=RUN,
            version=self.version,
            step=self.version,
            stage="rl",
            stage_index=stage_index,
            weights=weights,
            deltas=self.deltas.publish(self.version, stage_index, tensors, weights),
            canary=Canary(token_ids=empty, lengths=empty, logprobs=np.zeros(0, dtype=np.float32)),
            checkpoint_uri=self.checkpoints.uri(self.version),
        )
        return self.newest

    def restart(self) -> None:
        """Another process: it knows what lies in the store."""
        assert self.newest is not None
        self.deltas = DeltaPublisher(self.store, RUN, self.settings, self.policy.served)
        self.deltas.resume(self.newest, self.policy.published_tensors())

    def full(self, version: int) -> bytes:
        """The bytes of a version's full weights."""
        return self.store.get_bytes(self.store.uri_of(f"checkpoints/{RUN}/{version:08d}/{WEIGHTS}"))


class Follower:
    def __init__(self, store: ObjectStore, folder: Path, limit_bytes: int = 0) -> None:
        self.pull = PolicyPull(store, ObjectCache(folder, limit_bytes))
        self.ways: list[str] = []
        self.moved = 0

    def follow(self, policy: Policy, *, afresh: bool = False) -> bytes:
        pulled: Pulled = self.pull.get(policy, afresh=afresh)
        data = pulled.path.read_bytes()
        self.pull.served(policy, pulled)
        self.ways.append(pulled.way)
        self.moved += pulled.moved_bytes
        return data


def damaged(store: ObjectStore, uri: str, how: Callable[[bytearray], None]) -> None:
    """Changes the bytes of an object, in its place."""
    data = bytearray(store.get_bytes(uri))
    how(data)
    store.put_bytes(uri.removeprefix(f"{store.uri}/"), bytes(data))
