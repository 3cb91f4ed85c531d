"""One record of each defect, as somebody else's producer would write it.

What the contract lets pass is a message; what it would refuse at our own producer is bytes with a header.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from learner_builders import reward, sequence, trajectory

from shared.contracts import Reward, Sampling, Sequence, Trajectory, encode, schema_header
from shared.contracts.arrays import encode_array

GROUP_SIZE = 3
BAD = 2
"""The slot that is spoilt; the two before it are good."""


@dataclass(frozen=True, slots=True)
class Defect:
    """`letter`: whether the learner keeps the record as a dead letter. `verdict` of its reward, where it has one."""

    name: str
    spoil: Callable[[str], Trajectory]
    fate: str
    words: str
    letter: bool = False
    verdict: str = "passed"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Changes the JSON of a good record so that the contract refuses it."""

    name: str
    change: Callable[[dict[str, Any]], Any]
    words: str
    of: Literal["trajectory", "reward"] = "trajectory"
    schema: str = ""


def good(group: str, sample: int = BAD, **changes: Any) -> Trajectory:
    made = (sequence([1, 2, 3], [4 + sample, 5], [-3.0, -3.0]),)
    fields = {"sequences": made, "final_answer": str(sample), **changes}
    return trajectory(group, sample, size=GROUP_SIZE, **fields)


def _tokens(*logprobs: float, prompt: tuple[int, ...] = (1, 2), **arrays: Any) -> Callable[[str], Trajectory]:
    """`arrays` replaces whole arrays of the sequence, `version` the policy that sampled it."""
    version = arrays.pop("version", 0)
    made = sequence(list(prompt), [4] * len(logprobs), list(logprobs), version)
    made = made.model_copy(
        update={name: np.array(value, getattr(made, name).dtype) for name, value in arrays.items()}
    )
    return lambda group: good(group, sequences=(made,))


def _sampling(**changes: Any) -> Callable[[str], Trajectory]:
    return lambda group: good(
        group, sampling=Sampling(samples=GROUP_SIZE, group_size=GROUP_SIZE, max_tokens=16, **changes)
    )


DEFECTS = (
    Defect("NaN", _tokens(-1.0, math.nan), "invalid", "log-probability nan at sampled token 1", letter=True),
    Defect("infinite", _tokens(-math.inf), "invalid", "log-probability -inf at sampled token 0", letter=True),
    Defect("above zero", _tokens(-1.0, 0.5), "invalid", "log-probability 0.5000 is above zero", letter=True),
    Defect(
        "vocabulary",
        _tokens(-1.0, token_ids=[1, 2, 32]),
        "invalid",
        "vocabulary mismatch: token id 32, the model has ids 0 to 31",
        letter=True,
    ),
    Defect("negative id", _tokens(-1.0, token_ids=[1, -2, 3]), "invalid", "token id -2", letter=True),
    Defect("no context", _tokens(-1.0, prompt=()), "invalid", "it has no context", letter=True),
    Defect(
        "sampled by nobody",
        _tokens(-1.0, loss_mask=[0, 1, 1]),
        "invalid",
        "no policy version sampled",
        letter=True,
    ),
    Defect("unknown version", _tokens(-1.0, version=9), "invalid", "version 9, which this learner has not made"),
    Defect("empty completion", _tokens(), "invalid", "empty completion"),
    Defect("temperature", _sampling(temperature=0.7), "invalid", "mixed temperatures: sampled at 0.7"),
    Defect("top_p", _sampling(top_p=0.9), "invalid", "truncated sampling: top_p 0.9"),
    Defect("greedy", lambda g: good(g, sampling_mode="greedy"), "invalid", "greedy attempts are not trained"),
    Defect("long", _tokens(-1.0, prompt=(1,) * 130), "over_length", "131 tokens, the model reads 128"),
    Defect("cancelled", lambda g: good(g, stop_reason="cancelled"), "surplus", "had enough attempts"),
    Defect("broken checker", good, "faulted", "the checker broke", verdict="infrastructure"),
    Defect("unverifiable", good, "unverifiable", "the checker broke", verdict="unverifiable"),
)  # fmt: skip


def _array(name: str, array: Any) -> Callable[[dict[str, Any]], Any]:
    def change(body: dict[str, Any]) -> Any:
        body["sequences"][0][name] = encode_array(array)
        return body

    return change


def _field(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda body: {**body, name: value}


def _spans(body: dict[str, Any]) -> Any:
    body["sequences"][0]["version_spans"][-1]["length"] += 1
    return body


UNREADABLE = (
    Unreadable("short mask", _array("loss_mask", np.array([0, 0, 0, 1], "u1")), "sequence lengths differ: "
               "token_ids 5, loss_mask 4"),
    Unreadable("long log-probabilities", _array("logprobs", np.zeros(6, "<f4")), "logprobs 6"),
    Unreadable("versions of another length", _spans, "version_spans 6"),
    Unreadable("mask of twos", _array("loss_mask", np.array([0, 0, 0, 2, 1], "u1")), "loss_mask holds 2"),
    Unreadable("ids of another kind", _array("token_ids", np.zeros(5, "<f8")), "array dtype is '<f8'"),
    Unreadable("no JSON", lambda _: b"\xff\x00{", "is not readable"),
    Unreadable("a version from the future", lambda b: b, "upgrade this service", schema="temper.trajectory/9"),
    Unreadable("no number", _field("reward", "NaN"), "must be in [0, 1]", of="reward"),
    Unreadable("a reward of seven", _field("reward", 7.0), "must be in [0, 1]", of="reward"),
    Unreadable("a fault that pays", _field("verdict", "infrastructure"), "must carry none", of="reward"),
)  # fmt: skip


def raw(defect: Unreadable, group: str, run_id: str) -> tuple[bytes, list[tuple[str, bytes]], Trajectory]:
    """(body, headers, the attempt that was spoilt)."""
    made = good(group, name=f"{group}/spoilt")
    made = made.model_copy(update={"slot": made.slot.model_copy(update={"run_id": run_id})})
    message: Trajectory | Reward = made if defect.of == "trajectory" else reward(made, 1.0)
    body = defect.change(json.loads(encode(message)))
    headers = {"schema": defect.schema or schema_header(message), "run_id": run_id, "purpose": "train"}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return data, [(name, value.encode()) for name, value in headers.items()], made


MISPLACED = (
    (trajectory("9-rl-0000000", stage_index=9), "stage 9: the run has stages 0 to 0"),
    (trajectory("0-rl-0000000", 7, name="outside", size=8), "sample 7: a group of stage 0 has 3"),
    (trajectory("1-rl-0000000"), "group 1-rl-0000000 is of another stage than 0"),
)


def fault(group: str, sample: int = BAD) -> Trajectory:
    """What rollout sends where it could not make an attempt: nothing of it is ever trained on."""
    none: tuple[Sequence, ...] = ()
    made = good(group, sample, name=f"{group}/{sample}/fault")
    return made.model_copy(update={"stop_reason": "infrastructure", "fault": "no attempt", "sequences": none})
