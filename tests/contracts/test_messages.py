"""Messages: round trip, golden bytes of earlier builds, and everything that must be refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contracts import (
    MESSAGES,
    Control,
    Message,
    Reward,
    Sequence,
    Task,
    Trajectory,
    decode,
    encode,
    schema_header,
)
from shared.contracts.arrays import decode_array, encode_array
from shared.errors import ContractError, UnknownVersionError
from tests.contracts.examples import EXAMPLES, SEQUENCE, SLOT

GOLDEN = Path(__file__).parent / "golden_messages.jsonl"
"""One line a message: {"schema", "body"} as the first build that wrote it. Lines are added, never changed."""


def golden_lines() -> list[dict[str, str]]:
    return [json.loads(line) for line in GOLDEN.read_text().splitlines()]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: m.SCHEMA)
def test_round_trip(message: Message) -> None:
    again = decode(schema_header(message), encode(message))
    assert encode(again) == encode(message)
    assert type(again) is type(message)


def test_every_message_has_an_example_and_golden_bytes() -> None:
    names = {m.SCHEMA for m in MESSAGES}
    assert {type(m).SCHEMA for m in EXAMPLES} == names
    assert {line["schema"].split("/")[0] for line in golden_lines()} == names


@pytest.mark.parametrize("line", golden_lines(), ids=lambda line: line["schema"])
def test_golden_bytes_are_still_read_to_the_same_message(line: dict[str, str]) -> None:
    message = decode(line["schema"], line["body"].encode())
    example = next(m for m in EXAMPLES if m.SCHEMA == line["schema"].split("/")[0])
    assert encode(message) == encode(example)


def test_unknown_fields_are_ignored() -> None:
    body = json.loads(encode(EXAMPLES[0]))
    body["from_the_future"] = {"x": 1}
    body["domain"]["also_new"] = 2
    assert encode(decode("temper.task/1", json.dumps(body).encode())) == encode(EXAMPLES[0])


def test_a_version_from_the_future_is_refused_by_name() -> None:
    with pytest.raises(UnknownVersionError, match=r"temper\.task version 7 .* reads up to 1"):
        decode("temper.task/7", b"{}")


@pytest.mark.parametrize(
    "header", ["", "temper.task", "temper.nothing/1", "temper.task/x", "temper.task/0", "\ud800"]
)
def test_other_headers_are_contract_errors(header: str) -> None:
    with pytest.raises(ContractError):
        decode(header, b"{}")


@given(st.sampled_from([schema_header(m) for m in MESSAGES]), st.binary(max_size=200))
def test_no_bytes_escape_the_error_hierarchy(header: str, raw: bytes) -> None:
    with pytest.raises(ContractError):
        decode(header, raw)


@given(st.sampled_from(EXAMPLES), st.integers(0, 10_000), st.integers(0, 255))
def test_one_changed_byte_is_read_or_refused_never_anything_else(
    message: Message, at: int, value: int
) -> None:
    raw = bytearray(encode(message))
    raw[at % len(raw)] = value
    with contextlib.suppress(ContractError):
        decode(schema_header(message), bytes(raw))


def test_deep_nesting_is_a_contract_error() -> None:
    with pytest.raises(ContractError):
        decode("temper.task/1", b'{"files":' * 100_000)


@pytest.mark.parametrize("field", ["loss_mask", "logprobs", "token_ids"])
def test_lengths_that_differ_are_refused_with_all_of_them(field: str) -> None:
    body = SEQUENCE.model_dump()
    body[field] = body[field][:-1]
    with pytest.raises(ValueError, match=rf"sequence lengths differ: .*{field} 3"):
        Sequence.model_validate(body)


@pytest.mark.parametrize("spans", ["version_spans", "role_spans"])
def test_spans_cover_exactly_the_sequence(spans: str) -> None:
    body = SEQUENCE.model_dump()
    body[spans] = body[spans][:-1]
    with pytest.raises(ValueError, match="sequence lengths differ"):
        Sequence.model_validate(body)


def test_versions_of_tokens() -> None:
    assert SEQUENCE.versions().tolist() == [-1, -1, 4, 5]


def test_a_mask_is_zero_or_one() -> None:
    with pytest.raises(ValueError, match="only 0 and 1"):
        Sequence.model_validate(SEQUENCE.model_dump() | {"loss_mask": [0, 0, 2, 1]})


def test_faults_carry_no_reward_and_others_do() -> None:
    base = dict(
        trajectory_id="t", slot=SLOT, stage="rl", stage_index=0, purpose="train", domain="d", domain_version=1
    )
    with pytest.raises(ValueError, match="must carry none"):
        Reward(**base, verdict="infrastructure", reward=0.0)
    with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
        Reward(**base, verdict="failed")
    with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
        Reward(**base, verdict="passed", reward=float("nan"))
    assert Reward(**base, verdict="timeout_infra").is_fault


def test_demonstrations_are_for_training_on_them_only() -> None:
    task = next(m for m in EXAMPLES if isinstance(m, Task))
    answer, worse = ([{"role": "assistant", "content": content}] for content in ("11", "12"))
    body = task.model_dump() | {"stage": "rl", "rejected": []}
    for stage, purpose in (("rl", "train"), ("sft", "eval"), ("preference", "probe")):
        with pytest.raises(ValueError, match="only training of the stages sft and preference"):
            Task.model_validate(body | {"demonstration": answer, "stage": stage, "purpose": purpose})
    assert Task.model_validate(body | {"demonstration": answer, "stage": "sft"}).demonstration
    pair = body | {
        "stage": "preference",
        "demonstration": answer,
        "sampling": {"samples": 2, "group_size": 2},
    }
    assert Task.model_validate(pair | {"rejected": worse}).rejected
    for broken in (
        pair,
        pair | {"rejected": worse, "sampling": {"samples": 3, "group_size": 3}},
        body | {"stage": "sft", "demonstration": answer, "rejected": worse},
        body | {"rejected": worse},
    ):
        with pytest.raises(ValueError, match="a pair is a demonstration and a rejected answer"):
            Task.model_validate(broken)


def test_a_pause_and_a_resume_share_a_key_and_name_their_step() -> None:
    pause, resume = (Control(run_id="r", kind=kind, body={"step": 7}) for kind in ("pause", "resume"))
    assert pause.key() == resume.key() == "r/guard" and pause.step == resume.step == 7
    assert Control(run_id="r", kind="end").step == -1


def test_a_fault_trajectory_says_why() -> None:
    body = next(m for m in EXAMPLES if isinstance(m, Trajectory)).model_dump()
    with pytest.raises(ValueError, match="must say its fault"):
        Trajectory.model_validate(body | {"stop_reason": "infrastructure", "sequences": ()})
    with pytest.raises(ValueError, match="has no sequence"):
        Trajectory.model_validate(body | {"sequences": ()})


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50))
def test_integers_survive_exactly(values: list[int]) -> None:
    array = np.array(values, dtype=np.int32)
    assert decode_array(encode_array(array), np.dtype("<i4")).tolist() == values


def test_special_floats_survive_exactly() -> None:
    array = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], dtype=np.float32)
    assert decode_array(encode_array(array), np.dtype("<f4")).tobytes() == array.tobytes()


def test_big_endian_arrays_are_written_little_endian() -> None:
    assert encode_array(np.array([1, 2], dtype=">i4")) == encode_array(np.array([1, 2], dtype="<i4"))


@pytest.mark.parametrize(
    "wire",
    [
        {"dtype": "<i8", "data": "AAAAAAAAAAA="},
        {"dtype": "<i4", "data": "AAA="},
        {"dtype": "<i4", "data": "*"},
        {"dtype": "O", "data": ""},
    ],
)
def test_arrays_of_another_kind_are_refused(wire: dict[str, str]) -> None:
    body = json.loads(encode(next(m for m in EXAMPLES if isinstance(m, Trajectory))))
    body["sequences"][0]["token_ids"] = wire
    with pytest.raises(ContractError, match="sequences.0.token_ids"):
        decode("temper.trajectory/1", json.dumps(body).encode())


def test_messages_are_immutable_to_the_last_element() -> None:
    sequence = decode("temper.trajectory/1", encode(EXAMPLES[1])).sequences[0]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="read-only"):
        sequence.token_ids[0] = 9
