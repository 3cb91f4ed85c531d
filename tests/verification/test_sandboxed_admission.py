"""Domains that check in a sandbox stand the same trial as all others."""

from __future__ import annotations

import asyncio

import pytest

from shared.domains.admission import admit
from shared.domains.base import Attempt
from shared.errors import VerificationFault
from tests.services.coding import CODING, Coding


@pytest.mark.slow
def test_a_domain_whose_answers_are_programs_is_admitted() -> None:
    report = asyncio.run(admit(CODING, seeds=2, repeats=1))
    assert report.admitted, report.findings
    assert report.checks == 4 * 5 * 2, (
        "oracle, nothing, a near miss and two exploits, twice, on four instances"
    )


def test_a_sandboxed_domain_judges_by_itself_only_what_needs_no_sandbox() -> None:
    domain = Coding()
    instance = domain.instance(1)
    assert domain.verify(instance, Attempt("")).verdict == "failed"
    with pytest.raises(VerificationFault, match="'coding' wants a python_function_tests check"):
        domain.verify(instance, Attempt(domain.oracle(instance)))
