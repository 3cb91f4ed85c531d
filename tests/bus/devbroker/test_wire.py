"""What the broker makes of frames that no proper client sends."""

import socket
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.metadata import ApiVersionsResponse

from shared.bus.devbroker.apis import APIS
from shared.bus.devbroker.codes import Code
from shared.bus.devbroker.running import RunningBroker
from shared.bus.devbroker.settings import DevBrokerSettings
from tests.bus.devbroker.clients import create, send

pytestmark = pytest.mark.timeout(60)


def exchange(port: int, payload: bytes) -> bytes:
    """Send raw bytes; whatever comes back until the broker closes or half a second passes."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(0.5)
        client.sendall(payload)
        answer = b""
        try:
            while chunk := client.recv(65536):
                answer += chunk
        except (TimeoutError, ConnectionResetError):
            pass
        return answer


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def test_an_unknown_apiversions_version_is_answered_in_v0_with_the_table(broker: RunningBroker) -> None:
    answer = exchange(broker.port, frame(struct.pack(">hhih", 18, 99, 5, -1)))
    size, correlation = struct.unpack_from(">ii", answer)
    assert (size, correlation) == (len(answer) - 4, 5)
    decoded = ApiVersionsResponse.decode(answer[8:], version=0)
    assert decoded.error_code == Code.UNSUPPORTED_VERSION
    assert {row.api_key for row in decoded.api_keys} == set(APIS)


@pytest.mark.parametrize("size", [0, -1, 2**31 - 1])
def test_a_frame_of_impossible_size_is_refused_at_once(broker: RunningBroker, size: int) -> None:
    assert exchange(broker.port, struct.pack(">i", size) + b"x" * 100) == b""
    create(broker.bootstrap, "t")


def test_an_http_client_is_refused(broker: RunningBroker) -> None:
    assert exchange(broker.port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") == b""


@pytest.mark.parametrize("api_key", sorted(APIS))
def test_a_request_without_a_body_closes_only_its_connection(broker: RunningBroker, api_key: int) -> None:
    version = APIS[api_key].max_version
    exchange(broker.port, frame(struct.pack(">hhih", api_key, version, 1, -1) + b"\x00"))
    create(broker.bootstrap, "t")
    assert send(broker.bootstrap, "t", [b"x"]) == [0]


@pytest.fixture(scope="module")
def one_broker(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with RunningBroker(DevBrokerSettings(data_dir=tmp_path_factory.mktemp("fuzz") / "data")) as running:
        yield running


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(api_key=st.sampled_from(sorted(APIS)), version=st.integers(0, 20), body=st.binary(max_size=200))
def test_random_bodies_never_stop_the_broker(
    one_broker: RunningBroker, api_key: int, version: int, body: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", one_broker.port)) as client:
        client.sendall(frame(struct.pack(">hhih", api_key, version, 1, 0) + body))
    answer = exchange_versions(one_broker.port)
    assert len(answer) > 100


def exchange_versions(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(5)
        client.sendall(frame(struct.pack(">hhih", 18, 0, 1, -1)))
        return client.recv(65536)
