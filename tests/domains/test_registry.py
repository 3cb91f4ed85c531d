"""From names to domains: built in, installed by an entry point, or by place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shared.domains.arithmetic import Arithmetic
from shared.domains.registry import domain_places, load_domain, load_domains
from shared.errors import ConfigError
from tests.verification.faulty import FAULTY, Faulty


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, entry_points: str) -> None:
    """A distribution as an installer leaves it, on the import path of this test only."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[temper.domains]\n{entry_points}\n")
    if str(folder) not in sys.path:
        monkeypatch.syspath_prepend(str(folder))


def test_built_in_domains_are_there() -> None:
    assert list(domain_places())[:3] == ["arithmetic", "extraction", "sequences"]
    assert isinstance(load_domain("arithmetic"), Arithmetic)


def test_an_installed_package_adds_a_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "thirdparty", f"faulty = {FAULTY}")
    assert isinstance(load_domain("faulty"), Faulty)
    assert domain_places()["faulty"] == FAULTY


def test_two_packages_cannot_claim_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "thirdparty", f"arithmetic = {FAULTY}")
    with pytest.raises(ConfigError, match="'arithmetic' is declared twice, as shared.domains.* and as tests"):
        load_domain("arithmetic")


def test_an_entry_point_must_carry_the_domain_s_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "thirdparty", f"other = {FAULTY}")
    with pytest.raises(ConfigError, match="'other' at tests.* calls itself 'faulty'"):
        load_domain("other")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("arithmetic2", "did you mean 'arithmetic'"),
        ("zzz", "known: arithmetic, code_repair, extraction, sequences, terminal"),
        ("", "is not known"),
        (
            "no.such.module:X",
            "cannot be imported: ModuleNotFoundError.*; install its package, or name .* in PYTHONPATH",
        ),
        ("tests.domains.broken_module:X", "cannot be imported: ZeroDivisionError"),
        ("tests.verification.faulty:Missing", "has no 'Missing'"),
        ("tests.verification.faulty:FAULTY", "is str: it must be a Domain or a subclass"),
        (
            "tests.verification.faulty:Incomplete",
            "does not define difficulty_model, verify, oracle, do_nothing, near_misses: ",
        ),
        (
            "tests.verification.faulty:WantsArguments",
            "cannot be made: TypeError: .*'size'; a domain is made without arguments",
        ),
        (
            "tests.verification.faulty:WrongNames",
            "name is 3: it must be text; version is '1': it must be a whole number; difficulty_model is .*int",
        ),
    ],
)
def test_what_is_no_domain_is_refused_in_one_line(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_domain(name)
    assert "\n" not in str(caught.value)


def test_a_domain_answers_to_its_configured_and_to_its_own_name() -> None:
    found = load_domains([FAULTY, "sequences"])
    assert set(found) == {FAULTY, "faulty", "sequences"}
    assert found[FAULTY] is found["faulty"]


def test_one_domain_under_two_names_is_refused() -> None:
    with pytest.raises(ConfigError, match="'arithmetic' is configured twice"):
        load_domains(["arithmetic", "shared.domains.arithmetic:Arithmetic"])
