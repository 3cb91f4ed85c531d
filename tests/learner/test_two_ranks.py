"""Two ranks take the same steps as one: whole models, sharded ones, sequences spread over both."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks_cases import (
    MODES,
    OBJECTIVES,
    POLICIES,
    Outcome,
    policy_of,
    replica_of,
    run,
    store_in,
    tolerance_of,
)

PROGRAM = Path(__file__).parent / "ranks_program.py"


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What rank 0 found in every mode: two processes for all tests here, as each takes seconds to start."""
    results = tmp_path_factory.mktemp("ranks") / "results.pt"
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(results), *MODES],
            env={**os.environ, **place, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=480)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    found: dict[str, Any] = torch.load(results, weights_only=False)
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    kinds = {name: (policy_of, objective) for name, objective in OBJECTIVES.items()}
    kinds.update({name: (make, OBJECTIVES["kl in the loss"]) for name, make in POLICIES.items()})
    place = tmp_path_factory.mktemp("alone")
    return {
        name: run(replica_of(make(0)), objective, store_in(place, name.replace(" ", "-")))
        for name, (make, objective) in kinds.items()
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [*OBJECTIVES, *POLICIES])
def test_loss_gradients_and_weights_are_those_of_one_rank(
    mode: str, name: str, two_ranks: dict[str, Any], alone: dict[str, Outcome]
) -> None:
    one, two = alone[name], two_ranks[f"{mode}/{name}"]
    assert two.tokens == one.tokens > 0
    assert one.again and two.again
    assert two.losses == pytest.approx(one.losses, rel=tolerance_of(name))
    assert two.norms == pytest.approx(one.norms, rel=tolerance_of(name))
    assert min(one.norms) > 1e-3
    assert two.moments.keys() == one.moments.keys() and two.weights.keys() == one.weights.keys()
    for key, moment in one.moments.items():
        assert float((two.moments[key] - moment).norm()) <= tolerance_of(name) * max(
            1e-6, float(moment.norm())
        ), key
    if name == "bfloat16":
        return
    # Adam divides by the root of the gradient's square: where a gradient is near 0 its sign is a rounding error, and
    # the update is the whole learning rate. So weights agree less than gradients do.
    for key, weight in one.weights.items():
        torch.testing.assert_close(two.weights[key], weight, rtol=0, atol=1e-6)
    assert two.canary == pytest.approx(one.canary, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_what_refuses_a_step_on_one_rank_refuses_it_on_all(mode: str, two_ranks: dict[str, Any]) -> None:
    faults = two_ranks[f"{mode}/faults"]
    assert "the loss is not finite" in faults["not finite"]
    assert "0-rl-" in faults["not finite"]
    assert "abandoned between micro-batches" in faults["stop"]
    assert faults["untouched"] and faults["then learnt"] and faults["same everywhere"]
