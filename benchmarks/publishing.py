"""What a new policy costs on the way from the learner to a rollout process: whole, and as what changed.

`python -m benchmarks.publishing [--quick] [model]`. A real model with float32 masters takes real AdamW steps on text of
its own tokenizer; every step is published in the served dtype by the learner's own code into a store that is not a
local folder, and pulled by the rollout's. `bytes` is exact; the seconds are of this machine, both ways in one run.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.figures import figure, show
from services.learner.checkpoint import CheckpointStore
from services.learner.deltas import DeltaPublisher
from services.learner.model import PolicyModel
from services.learner.model import load_policy as load_model
from services.rollout.pulling import PolicyPull
from shared.contracts import Canary, Policy
from shared.settings import LearnerSettings, ModelSettings
from shared.storage import ObjectStore
from shared.storage.cache import ObjectCache
from shared.weights.settings import PublishingSettings

CASES = (("bfloat16", 1e-6), ("bfloat16", 5e-6), ("bfloat16", 3e-5), ("float32", 1e-6))
STEPS = 3
"""Adam's first steps are its largest for a rate: its second moments have seen nothing yet."""
TEXT = (
    "A rope of length {n} is cut into {m} pieces. Each is longer than the one before it by {n} centimetres. "
    "How long is the last piece? Let us call the first x and write the sum of all pieces as an equation in x. "
)


@contextmanager
def far_store(folder: Path) -> Iterator[ObjectStore]:
    """Files behind a protocol that is not `file`: everything is downloaded."""
    from fsspec import register_implementation
    from fsspec.implementations.local import LocalFileSystem

    class Far(LocalFileSystem):  # type: ignore[misc]
        protocol = "far"

        def open(self, path: str, mode: str = "rb", **named: Any) -> Any:
            if "w" in mode:
                self.makedirs(self._parent(path), exist_ok=True)
            return super().open(path, mode, **named)

    register_implementation("far", Far, clobber=True)
    yield ObjectStore(f"far://{folder}")


def batches(model: Path, policy: PolicyModel) -> Iterator[torch.Tensor]:
    """int64[2, 64] token ids, another each time."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model), local_files_only=True)
    number = 0
    while True:
        number += 1
        text = "".join(TEXT.format(n=number + k, m=number % 7 + k + 2) for k in range(12))
        ids = torch.tensor(tokenizer(text)["input_ids"] * 2)[: 2 * 64]
        yield ids.reshape(2, -1).to(policy.device)


def measure(model: Path, cases: Sequence[tuple[str, float]] = CASES) -> Iterator[dict[str, Any]]:
    """For each (served dtype, learning rate): bytes of a delta over the full ones; seconds of both ways. Nothing where
    the model is not there."""
    if not model.is_dir():
        return
    for dtype, rate in cases:
        with tempfile.TemporaryDirectory(prefix="temper-publishing-") as folder:
            yield from _one(model, dtype, rate, Path(folder))


def _one(model: Path, dtype: str, rate: float, folder: Path) -> Iterator[dict[str, Any]]:
    policy = load_model(
        ModelSettings.model_validate({"path": str(model), "dtype": dtype}), LearnerSettings(device="cpu")
    )
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=rate, weight_decay=0.0)
    text = batches(model, policy)
    with far_store(folder / "objects") as store:
        settings = PublishingSettings(deltas="always", most_share=1.0)
        deltas = DeltaPublisher(store, "bench", settings, policy.served)
        checkpoints = CheckpointStore(store, "bench")
        whole, follower = (PolicyPull(store, ObjectCache(folder / name)) for name in ("whole", "delta"))
        for version in range(STEPS + 1):
            if version:
                ids = next(text)
                policy.model(input_ids=ids, labels=ids).loss.backward()
                torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            tensors = policy.published_tensors()
            weights, wrote = _timed(lambda: checkpoints.write_weights(version, tensors))  # noqa: B023
            chain, encoded = _timed(lambda: deltas.publish(version, 0, tensors, weights))  # noqa: B023
            announced = _policy(version, weights, chain)
            pulled, applied = _timed(lambda: follower.get(announced))  # noqa: B023
            follower.served(announced, pulled)
            plain = announced.model_copy(update={"deltas": ()})
            full, fetched = _timed(lambda: whole.get(plain))  # noqa: B023
            whole.served(plain, full)
            assert _digest(pulled.path) == _digest(full.path) == weights.sha256
            for old in range(version):
                shutil.rmtree(folder / "objects" / "checkpoints" / "bench" / f"{old:08d}", ignore_errors=True)
    size = chain[-1].size_bytes if chain else weights.size_bytes
    yield figure(
        f"publishing.{dtype}_at_{rate:.0e}",
        round(size / weights.size_bytes, 5),
        "bytes of a delta over the full ones",
        way=pulled.way,
        delta_bytes=size,
        full_bytes=weights.size_bytes,
        by_step=[round(delta.size_bytes / weights.size_bytes, 5) for delta in chain],
        write_full_s=round(wrote, 3),
        encode_delta_s=round(encoded, 3),
        pull_full_s=round(fetched, 3),
        pull_delta_s=round(applied, 3),
        model=model.name,
    )


def _policy(version: int, weights: Any, chain: Any) -> Policy:
    empty = np.zeros(0, dtype=np.int32)
    return Policy(
        run_id="bench",
        version=version,
        step=version,
        stage="rl",
        stage_index=0,
        weights=weights,
        deltas=chain,
        canary=Canary(token_ids=empty, lengths=empty, logprobs=np.zeros(0, dtype=np.float32)),
        checkpoint_uri="",
    )


def _timed(work: Any) -> tuple[Any, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, default=Path("models/smollm2"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for line in measure(options.model, CASES[:1] if options.quick else CASES):
        show(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
