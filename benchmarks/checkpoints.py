"""What a checkpoint costs the step after it: written at once, and copied and written beside it.

`python -m benchmarks.checkpoints [model]`. A real model in float32 with AdamW's moments (12 bytes a parameter), by the
learner's own code, into a folder on this machine's disk. Both ways alternate in one run; the figures are ratios.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.figures import figure, show
from services.learner.checkpoint import CheckpointStore
from services.learner.model import PolicyModel, load_policy
from services.learner.optimizer import make_optimizer, optimizer_tensors
from services.learner.publish import make_canary
from services.learner.staging import HostCopies
from shared.settings import LearnerSettings, ModelSettings
from shared.storage import ObjectStore

ROUNDS, TOKENS = 2, 64


class Learner:
    """A policy that takes steps on random tokens, and the files of its checkpoints."""

    def __init__(self, model: Path, place: Path) -> None:
        settings = LearnerSettings(device="cpu")
        self.policy: PolicyModel = load_policy(ModelSettings(path=str(model)), settings)
        self.optimizer = make_optimizer(self.policy, settings)
        self.store = CheckpointStore(ObjectStore(f"file://{place}"), "bench")
        self._weights, self._moments = HostCopies(), HostCopies()
        self._ids = torch.randint(0, self.policy.vocabulary, (1, TOKENS))
        self._number = 0

    def step(self) -> None:
        self.policy.model(input_ids=self._ids, labels=self._ids).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def write(self, weights: Any, moments: Any) -> None:
        self._number += 1
        written = self.store.write_weights(self._number, weights)
        self.store.complete(
            self._number, written, self.store.write_optimizer(self._number, moments), {"state": "none"}
        )

    def prune(self) -> None:
        self.store.strip_all_but(())

    def live(self) -> tuple[Any, Any]:
        return self.policy.published_tensors(), optimizer_tensors(self.policy, self.optimizer)

    def canary_and(self, tensors: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
        """The next step waits for the canary either way."""
        make_canary(self.policy, 1e-3)
        return tensors()

    def copies(self) -> tuple[Any, Any]:
        weights, moments = self.live()
        return self._weights.of(weights), self._moments.of(moments)


def seconds_of(job: Callable[[], Any]) -> float:
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def one_round(learner: Learner) -> Iterator[tuple[str, float]]:
    """(what, seconds) of each thing that is compared."""
    yield "alone", seconds_of(learner.step)
    yield "at_once", seconds_of(lambda: learner.write(*learner.canary_and(learner.live)))
    learner.prune()
    copies: list[Any] = []
    yield "held_up", seconds_of(lambda: copies.extend(learner.canary_and(learner.copies)))
    written: list[float] = []
    writing = threading.Thread(target=lambda: written.append(seconds_of(lambda: learner.write(*copies))))
    writing.start()
    yield "beside", seconds_of(learner.step)
    writing.join()
    yield "write", written[0]
    learner.prune()


def measure(model: Path) -> Iterator[dict[str, Any]]:
    """Nothing where the model is not there."""
    if not model.is_dir():
        return
    times: dict[str, list[float]] = {name: [] for name in ("alone", "at_once", "held_up", "beside", "write")}
    with tempfile.TemporaryDirectory() as folder:
        learner = Learner(model, Path(folder))
        learner.step()
        learner.copies()  # the memory is taken once
        for _ in range(ROUNDS):
            for name, seconds in one_round(learner):
                times[name].append(seconds)
    found = {name: statistics.median(values) for name, values in times.items()}
    about = {
        "model": str(model), "rounds": ROUNDS, **{f"{name}_s": round(value, 3) for name, value in found.items()},
    }  # fmt: skip
    yield figure(
        "checkpoint.held_up", round(found["held_up"] / found["at_once"], 3), "of a write at once", **about
    )
    yield figure(
        "checkpoint.step_beside_a_write",
        round(found["beside"] / found["alone"], 2),
        "of a step alone",
        **about,
    )


def main() -> int:
    for line in measure(Path(sys.argv[1] if len(sys.argv) > 1 else "models/smollm2")):
        show(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
