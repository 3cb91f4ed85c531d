"""A jailer whose checks are made in forks."""

from __future__ import annotations

import textwrap

from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Result
from shared.sandbox.prewarmed.child import Check
from tests.sandbox.machines import Jailer, patient

SMALL = Limits(wall_s=10, cpu_s=8, memory_mb=96, processes=16, output_kb=64, file_mb=8, disk_mb=8, inodes=500)


def check(jail: Jailer, source: str, limits: Limits = SMALL, **more: object) -> Result:
    """Of a source that may be indented."""
    made = Check(textwrap.dedent(source), **more)  # type: ignore[arg-type]
    return jail.wait(jail.sandbox.prewarmed.run(made, patient(limits)))


def printed(jail: Jailer, source: str, limits: Limits = SMALL, **more: object) -> str:
    """What a check printed that must have ended well."""
    result = check(jail, source, limits, **more)
    assert result.ok, result
    return result.stdout.decode().strip()


def nothing_left(jail: Jailer) -> None:
    """Once the prepared ones, which are there on purpose, are ended too."""
    jail.wait(jail.sandbox.prewarmed.close())
    assert jail.leftovers() == []
