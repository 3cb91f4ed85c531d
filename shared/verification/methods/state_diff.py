"""`state_diff`: what the policy left in its workspace, against the tree that should be there.

Invariant: pure; every expected path is accounted for, and so is every other one unless it is declared free. A link
stands for itself, never for what it points to. What is wrong with the tree found is the policy's failure, what is wrong
with the expected one a bad request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.errors import VerificationFault
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.verification.detectors.flags import Flag
from shared.verification.detectors.output import flags_of_output
from shared.verification.detectors.tree import flags_of_changes
from shared.verification.detectors.wording import hedges
from shared.verification.judgement import Judgement
from shared.verification.methods.base import Request
from shared.verification.methods.outputs import OutputComparator, same_output
from shared.verification.methods.trees import Entry, FoundEntry, matches, twice

Content = Literal["exact", "lines", "tokens", "numbers", "json", "any"]


class ExpectedEntry(Entry):
    """`kind` may be `absent`: the path must not be there. `comparator` is for a file's content."""

    kind: Literal["file", "folder", "link", "other", "absent"] = "file"  # type: ignore[assignment]
    comparator: Content = "exact"


class StateOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    others: Literal["forbidden", "allowed"] = "forbidden"
    """Files and links beside the expected ones; folders that lead to an expected path are always allowed."""
    ignore: tuple[str, ...] = ()
    """Shell patterns of paths that nobody looks at."""
    partial: bool = False
    """Pay the share of the expected paths that are right, if nothing forbidden is there."""


class StateDiff(Request):
    """`found`: the policy's tree; `original`: the tree it began with, for flags only."""

    expected: tuple[ExpectedEntry, ...] = Field(min_length=1)
    found: tuple[FoundEntry, ...]
    original: tuple[Entry, ...] = ()
    options: StateOptions = StateOptions()

    @model_validator(mode="after")
    def _once_each(self) -> Self:
        name = twice(self.expected)
        if name is not None:
            raise ValueError(f"`expected` names a path twice: {name[:100]!a}")
        return self


async def check(sandbox: Sandbox | None, request: StateDiff, limits: Limits) -> Judgement:
    """Raises `VerificationFault` for an expectation that cannot be read."""
    del sandbox, limits
    unread = next((problem for entry in request.found if (problem := entry.problem())), None)
    if unread is not None:
        return Judgement.failed(unread)
    name = twice(request.found)
    if name is not None:
        return Judgement.failed(f"{name[:100]!a} is there twice")
    found = {entry.name: entry for entry in request.found if not matches(entry.name, request.options.ignore)}
    problems = [_problem(entry, found.get(entry.name)) for entry in request.expected]
    wrong = [problem for problem in problems if problem]
    extra = _extra(request, found)
    judged = _verdict(request, len(problems) - len(wrong), [*wrong, *extra], bool(extra))
    return judged.flagged(_flags(request, found))


def _verdict(request: StateDiff, right: int, problems: list[str], forbidden: bool) -> Judgement:
    total = len(request.expected)
    if not problems:
        return Judgement.passed(f"{total} of {total} paths")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    reason = f"{problems[0]}{more}"
    if request.options.partial and right and not forbidden:
        return Judgement.partial(right / total, f"{right} of {total} paths; {reason}")
    return Judgement.failed(reason)


def _problem(expected: ExpectedEntry, found: Entry | None) -> str | None:
    name = ascii(expected.name[:100])
    if expected.kind == "absent":
        return f"{name} is still there" if found else None
    if found is None:
        return f"{name} is missing"
    if found.kind != expected.kind:
        return f"{name} is a {found.kind}, not a {expected.kind}"
    if expected.permissions() is not None and found.permissions() != expected.permissions():
        return f"{name} has another mode"
    if expected.kind == "link" and expected.target is not None and found.target != expected.target:
        return f"{name} points elsewhere"
    if expected.kind == "file" and not _same_content(expected, found.content()):
        return f"{name} has other content"
    return None


def _same_content(expected: ExpectedEntry, found: bytes | None) -> bool:
    wanted = expected.content()
    if expected.comparator == "any" or wanted is None:
        return True
    if found is None:
        return False
    if expected.comparator == "json":
        return _same_json(expected.name, wanted, found)
    return same_output(OutputComparator(kind=expected.comparator), wanted, found)


def _same_json(name: str, wanted: bytes, found: bytes) -> bool:
    try:
        right = _json(wanted)
    except (ValueError, RecursionError) as error:
        raise VerificationFault(f"the expected content of {name!r} is no JSON; mend the domain") from error
    try:
        return bool(_typed(right) == _typed(_json(found)))
    except (ValueError, RecursionError):
        return False


def _json(raw: bytes) -> Any:
    """Raises `ValueError` also for a key that stands twice, and for NaN, of which nobody knows what they mean."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            raise ValueError("a key stands twice")
        return made

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    return json.loads(raw, object_pairs_hook=once, parse_constant=refuse)


def _typed(value: Any) -> Any:
    """`true` is not `1`."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    return [_typed(item) for item in value] if isinstance(value, list) else value


def _extra(request: StateDiff, found: Mapping[str, Entry]) -> list[str]:
    if request.options.others == "allowed":
        return []
    expected = {entry.name for entry in request.expected}
    leading = {str(folder) for name in expected for folder in PurePosixPath(name).parents}
    return [
        f"{name[:100]!a} should not be there"
        for name, entry in sorted(found.items())
        if name not in expected and not (entry.kind == "folder" and name in leading)
    ]


def _flags(request: StateDiff, found: Mapping[str, Entry]) -> set[Flag]:
    before = {entry.name: entry.content() or b"" for entry in request.original}
    wanted = {entry.name for entry in request.expected}
    after = {name: entry.content() or b"" for name, entry in found.items() if name not in wanted}
    before = {name: content for name, content in before.items() if name in after}
    flags = set(flags_of_changes(before, after))
    for entry in request.found:
        content = entry.content() or b""
        if entry.name in wanted and entry.kind == "file":
            flags |= flags_of_output(content)
            if hedges(content[:200].decode("utf-8", "replace").strip()):
                flags.add(Flag.HEDGED_ANSWER)
    leaving = [entry for entry in request.found if entry.kind == "link" and _leaves(entry)]
    if leaving:
        flags.add(Flag.READS_PROC_OR_DISK)
    return flags


def _leaves(entry: Entry) -> bool:
    target = entry.target or ""
    return target.startswith("/") or target.count("..") > entry.name.count("/")
