"""Every combination of evidence has one outcome, by the first rule that applies."""

from __future__ import annotations

import itertools
import signal

import pytest

from shared.sandbox.cgroups.base import Counters
from shared.sandbox.limits import Limits
from shared.sandbox.nsjail_log import Ending
from shared.sandbox.outcome import Outcome
from shared.sandbox.outcome_rules import Evidence, decide

LIMITS = Limits(wall_s=2, cpu_s=1, memory_mb=64, processes=4, output_kb=8, file_mb=3)
ENDINGS = {
    "well": Ending("exited"),
    "ill": Ending("exited", 3),
    "137": Ending("exited", 137),
    "kill": Ending("signalled", signal.SIGKILL),
    "xcpu": Ending("signalled", signal.SIGXCPU),
    "xfsz": Ending("signalled", signal.SIGXFSZ),
    "no program": Ending("no_program", 127, "execve('/x') failed: No such file or directory"),
    "no jail": Ending("not_started", message="no folder"),
    "silence": Ending("unknown"),
}
STOPS = (
    None,
    Outcome.KILLED,
    Outcome.MEMORY_LIMIT,
    Outcome.OUTPUT_LIMIT,
    Outcome.CPU_LIMIT,
    Outcome.WALL_LIMIT,
)
COUNTED = list(itertools.product((0, 1), (0, 7), (0.2, 1.0)))
ALL = list(
    itertools.product(ENDINGS, STOPS, COUNTED, (False, True), ("", "/tmp"), ("", "the keeper is gone"))
)


def expected(
    name: str,
    stopped: Outcome | None,
    memory: int,
    refusals: int,
    cpu: float,
    flooded: bool,
    full: str,
    lost: str,
) -> Outcome:
    """The rules as a list to read from above."""
    itself = stopped is None
    well = itself and name == "well"
    rules = [
        (bool(lost), Outcome.INFRASTRUCTURE),
        (stopped is Outcome.KILLED, Outcome.KILLED),
        (memory > 0, Outcome.MEMORY_LIMIT),
        (flooded, Outcome.OUTPUT_LIMIT),
        (refusals > 0 and not well, Outcome.PROCESS_LIMIT),
        (stopped is Outcome.CPU_LIMIT or cpu >= 1 or (itself and name == "xcpu"), Outcome.CPU_LIMIT),
        (stopped is Outcome.WALL_LIMIT, Outcome.WALL_LIMIT),
        (itself and name == "xfsz", Outcome.DISK_LIMIT),
        (bool(full) and not well, Outcome.DISK_LIMIT),
        (name in ("well", "ill", "137", "no program"), Outcome.EXITED),
        (name in ("kill", "xcpu", "xfsz"), Outcome.SIGNALLED),
    ]
    return next((outcome for applies, outcome in rules if applies), Outcome.INFRASTRUCTURE)


def test_every_combination() -> None:
    for name, stopped, (memory, refusals, cpu), flooded, full, lost in ALL:
        counters = Counters(cpu_s=cpu, memory_kills=memory, process_refusals=refusals)
        evidence = Evidence(ENDINGS[name], counters, stopped, flooded, full, lost)
        verdict = decide(evidence, LIMITS)
        assert verdict.outcome is expected(name, stopped, memory, refusals, cpu, flooded, full, lost), (
            evidence
        )
        assert (verdict.exit_code is not None) == (verdict.outcome is Outcome.EXITED), evidence
        assert (verdict.signal is not None) == (verdict.outcome is Outcome.SIGNALLED), evidence
        assert verdict.detail or verdict.outcome is Outcome.EXITED, evidence


@pytest.mark.parametrize(
    ("evidence", "outcome", "number"),
    [
        (Evidence(ENDINGS["137"]), Outcome.EXITED, 137),
        (Evidence(ENDINGS["kill"]), Outcome.SIGNALLED, 9),
        (Evidence(ENDINGS["no program"]), Outcome.EXITED, 127),
    ],
)
def test_137_is_no_signal(evidence: Evidence, outcome: Outcome, number: int) -> None:
    verdict = decide(evidence, LIMITS)
    assert verdict.outcome is outcome
    assert (verdict.exit_code if outcome is Outcome.EXITED else verdict.signal) == number


def test_the_words_name_the_limit_and_nothing_that_varies() -> None:
    said = [
        decide(Evidence(ENDINGS["kill"], Counters(memory_kills=3)), LIMITS).detail,
        decide(Evidence(ENDINGS["kill"], flooded=True), LIMITS).detail,
        decide(Evidence(ENDINGS["ill"], Counters(process_refusals=9)), LIMITS).detail,
        decide(Evidence(ENDINGS["kill"], Counters(cpu_s=1.0371)), LIMITS).detail,
        decide(Evidence(ENDINGS["kill"], stopped=Outcome.WALL_LIMIT), LIMITS).detail,
        decide(Evidence(ENDINGS["xfsz"]), LIMITS).detail,
        decide(Evidence(ENDINGS["ill"], full="/work"), LIMITS).detail,
    ]
    assert said == [
        "over 64 MiB of memory", "over four times 8 KiB of output", "over 4 processes", "over 1 s of CPU time",
        "over 2 s", "a file over 3 MiB", "/work is full",
    ]  # fmt: skip
