"""Admission: sound domains pass, and each way to be unsound is found and named."""

from __future__ import annotations

import asyncio
import re

import pytest

from shared.domains.admission import AdmissionReport, Finding, admit
from shared.errors import ConfigError
from temper.cli.domains import finding_lines


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
        ("NamesAToolNobodyHas", "tools", "names tool 'bas', which is not known; did you mean 'bash'?"),
        ("NamesNoToolOfItsOwn", "tools", "tool 'incremnt', which is not known; did you mean 'increment'?"),
        ("CannotMakeItsTools", "tools", "its tools cannot be made: faulty.py:"),
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


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("DraftsNothing", r"draft returned nothing \(None\): it must return a Draft"),
        ("PromptsANumber", "the prompt of a draft is a value of type int: it must be text"),
        ("ToolsAreText", r"the tools of a draft are a value of type str: they must be a tuple of names"),
        ("AnswersANumber", "oracle returned a value of type int: it must return text"),
        (
            "MissesAreText",
            "near_misses returned a value of type str in its list: it must return a list of NearMiss",
        ),
        ("MissesWantNoVerdict", "near_misses wants verdict 'wrong': use one of passed, failed"),
    ],
)
def test_a_method_that_returns_another_type_is_said_once(place: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tried(f"tests.verification.faulty:{place}")


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        ("DividesByZero", r"instance .*: faulty.py:\d+: ZeroDivisionError: .*"),
        ("WrongOracle", r"oracle .*: verdict failed, must be passed"),
        ("NearMissPasses", r"near_miss .* \(the value itself\): verdict passed, must be failed"),
        ("JudgesNothing", "fault .* returned NoneType: it must return a Judgement.*"),
    ],
)
def test_one_mistake_of_a_domain_is_one_line_whatever_the_seeds(place: str, cause: str) -> None:
    report = tried(f"tests.verification.faulty:{place}")
    lines = finding_lines(report.findings)
    assert len(report.findings) > 1 and len(lines) == 1
    assert re.fullmatch(rf"{cause} \(and {len(report.findings) - 1} times more\)", lines[0]), lines


def test_different_findings_stay_apart() -> None:
    findings = [
        Finding("oracle", 0, {}, "a", "one"),
        Finding("oracle", 1, {}, "b", "two"),
        Finding("do_nothing", 0, {}, "c", "one"),
        Finding("split", 0, {}, "d"),
        Finding("split", 0, {}, "d"),
    ]
    assert len(finding_lines(findings)) == 5


def test_a_tool_of_the_domains_own_is_known() -> None:
    assert tried("tests.verification.faulty:NamesItsOwnTool", seeds=1).admitted


def test_one_wrong_tool_is_one_line_whatever_the_seeds() -> None:
    report = tried("tests.verification.faulty:NamesAToolNobodyHas")
    assert len(report.findings) == 6
    assert len(finding_lines(report.findings)) == 1
