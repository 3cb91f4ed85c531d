"""Admission: sound domains pass, and each way to be unsound is found and named."""

from __future__ import annotations

import asyncio

import pytest

from shared.domains.admission import AdmissionReport, admit
from shared.errors import ConfigError


def tried(name: str, **options: float) -> AdmissionReport:
    return asyncio.run(admit(name, **{"seeds": 3, "repeats": 2, **options}))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["arithmetic", "extraction", "sequences"])
def test_the_built_in_domains_are_admitted(name: str) -> None:
    report = tried(name)
    assert report.admitted, report.findings
    assert (report.domain, report.instances, report.distinct) == (name, 6, 6)
    assert report.checks > 6 * 4 * 8


@pytest.mark.parametrize(
    ("place", "trial", "words"),
    [
        ("WrongOracle", "oracle", "verdict failed, must be passed"),
        ("PaysForNothing", "do_nothing", "verdict passed, must be failed"),
        ("NearMissPasses", "near_miss", "(the value itself): verdict passed, must be failed"),
        ("ExploitPasses", "exploit", "(read off the question): verdict passed, must be failed"),
        ("Flaky", "flaky", "verdicts differ between runs: failed, passed"),
        ("DifferentEveryTime", "fault", "the generator is not deterministic"),
        ("OneSplit", "split", "is in both splits"),
    ],
)
def test_each_way_to_be_unsound_is_named(place: str, trial: str, words: str) -> None:
    report = tried(f"tests.verification.faulty:{place}", repeats=4)
    assert not report.admitted
    found = [finding for finding in report.findings if finding.trial == trial]
    assert found and words in str(found[0]), report.findings
    assert report.flaky == (place == "Flaky")


def test_a_domain_that_hangs_is_named_and_not_suffered() -> None:
    report = tried("tests.verification.faulty:Hangs", seeds=1, repeats=1, check_seconds=0.1)
    assert {finding.trial for finding in report.findings} == {"fault"}
    assert "passed its budget of 0.1 s" in str(report.findings[0])


def test_an_unknown_domain_or_difficulty_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sequences'"):
        tried("sequence")
    with pytest.raises(ConfigError, match="unknown key 'x'"):
        asyncio.run(admit("sequences", difficulties=[{"x": 1}]))
