"""Headers: round trip, replacement on forwarding, bad values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contracts import Headers
from shared.errors import ContractError

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


@given(
    st.builds(
        Headers, schema=TEXT, message_id=TEXT, run_id=TEXT, group_id=TEXT, purpose=TEXT, attempt=st.integers(),
        policy_version=st.integers(), not_before_ms=st.integers(), deadline_ms=st.integers(), traceparent=TEXT,
        claim=TEXT, error_type=TEXT, error_message=TEXT, origin=TEXT,
    )
)  # fmt: skip
def test_round_trip(headers: Headers) -> None:
    assert Headers.from_kafka(headers.to_kafka()) == headers


def test_forwarding_replaces_and_never_appends() -> None:
    headers = Headers.from_kafka([("traceparent", b"old"), ("custom", b"kept"), ("traceparent", b"newer")])
    raw = headers.with_(traceparent="mine").to_kafka()
    assert [v for k, v in raw if k == "traceparent"] == [b"mine"]
    assert ("custom", b"kept") in raw


def test_dead_letter_headers_have_dotted_names() -> None:
    assert ("error.type", b"ContractError") in Headers(error_type="ContractError").to_kafka()


def test_lone_surrogates_and_invalid_bytes_do_not_crash() -> None:
    assert Headers(error_message="\ud800").to_kafka() == [("error.message", b"\\ud800")]
    assert Headers.from_kafka([("error.message", b"\xff")]).error_message == "\\xff"


def test_a_number_that_is_none_is_a_contract_error() -> None:
    with pytest.raises(ContractError, match="header attempt is 'two'"):
        Headers.from_kafka([("attempt", b"two")])
