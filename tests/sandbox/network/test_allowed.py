"""Where a run may connect to, decided by names and by addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigError
from shared.sandbox.network.allowed import allowed, parse_place


@pytest.mark.parametrize(
    "text", ["pypi.org", "pypi.org:", "pypi.org:0", "pypi.org:99999", ":80", "a b:1", "*:80", "*.:1", "a:²"]
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not host:port"):
        parse_place(text)


def test_a_run_gets_only_what_the_operator_allows() -> None:
    operator = ["*.pypi.org:443", "10.0.0.5:8080"]
    assert allowed(["files.pypi.org:443", "*.pypi.org:443", "10.0.0.5:8080"], operator).names(
        "files.pypi.org", 443
    )
    for asked in (
        "pypi.org:443",
        "files.pypi.org:80",
        "evilpypi.org:443",
        "10.0.0.6:8080",
        "example.org:443",
    ):
        with pytest.raises(ConfigError, match=r"sandbox\.network allows"):
            allowed([asked], operator)


def test_names() -> None:
    places = allowed(["*.a.org:443", "b.org:80"], ["*.a.org:443", "b.org:80"])
    for host, port, wanted in (
        ("x.a.org", 443, True), ("X.A.org.", 443, True), ("a.org", 443, False), ("xa.org", 443, False), ("x.a.org", 80, False),
        ("b.org", 80, True), ("c.b.org", 80, False), ("b.org.evil.net", 80, False),
    ):  # fmt: skip
        assert places.names(host, port) is wanted, host


INSIDE = ["127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "::1", "fe80::1", "fd00::1", "0.0.0.0",
          "::ffff:127.0.0.1", "::ffff:169.254.169.254", "224.0.0.1", "100.64.0.1", "nonsense"]  # fmt: skip


@pytest.mark.parametrize("address", INSIDE)
def test_a_name_never_leads_inside(address: str) -> None:
    """DNS rebinding: an allowed name that resolves to this machine, a private network or a metadata service."""
    places = allowed(["a.org:80"], ["a.org:80"])
    assert not places.address(address, "a.org", 80)
    assert places.address("93.184.216.34", "a.org", 80)


def test_an_address_told_by_its_number_was_meant() -> None:
    places = allowed(["10.1.2.3:80"], ["10.1.2.3:80"])
    assert places.address("10.1.2.3", "10.1.2.3", 80)
    assert not places.address("10.1.2.4", "10.1.2.3", 80)


@given(st.text(max_size=40), st.integers(-1, 70_000))
def test_no_text_is_allowed_by_accident(host: str, port: int) -> None:
    places = allowed(["only.org:443"], ["only.org:443"])
    assert places.names(host, port) == (host.lower().rstrip(".") == "only.org" and port == 443)
