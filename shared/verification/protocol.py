"""The lines between a verifier and its children: one JSON object a line, each way.

Invariant: a line is ASCII whatever the text in it (lone surrogates travel as escapes), has no bare line feed,
and is plain data: reading one never runs code. Pure functions; no I/O here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from shared.contracts.task import DomainRef
from shared.verification.faults import CheckerDied
from shared.verification.judgement import Attempt, Judgement
from shared.verification.request import CheckRequest

MAX_LINE_BYTES = 16 << 20
"""Of a child's line: a judgement is bounded by `outward` to a few kilobytes, a check request by this. Hidden tests
and small databases fit; it bounds what one child can make its verifier hold."""
_MAX_REASON = 500
_MAX_ENTRIES = 32


@dataclass(frozen=True, slots=True)
class Hello:
    """The first line a child reads."""

    domains: tuple[str, ...]
    address_space_bytes: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The first line a child writes: what it serves, or why it cannot."""

    error: str = ""
    missing_limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    reference: DomainRef
    attempt: Attempt
    budget_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """`judgement`, or `request` where the domain wants its check made in a sandbox, or `fault` in words.

    `last`: the child ends after it. `cpu_s`: CPU seconds of the check.
    """

    judgement: Judgement | None
    fault: str = ""
    cpu_s: float = 0.0
    last: bool = False
    request: CheckRequest | None = None


def outward(text: str, limit: int = _MAX_REASON) -> str:
    """Valid UTF-8 of bounded length: what is not text is shown as backslash escapes."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return cut.encode("utf-8", "backslashreplace").decode("utf-8")


def write_hello(hello: Hello) -> bytes:
    return _line({"domains": list(hello.domains), "address_space_bytes": hello.address_space_bytes})


def read_hello(line: bytes) -> Hello:
    body = json.loads(line)
    return Hello(tuple(body["domains"]), int(body["address_space_bytes"]))


def write_ready(ready: Ready) -> bytes:
    return _line({"error": ready.error, "missing_limits": list(ready.missing_limits)})


def read_ready(line: bytes) -> Ready:
    """Raises `CheckerDied` for a line that is none."""
    try:
        body = json.loads(line)
        return Ready(str(body["error"]), tuple(map(str, body["missing_limits"])))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckerDied(f"a checking child opened with {line[:80]!r} instead of its state") from error


def write_question(question: Question) -> bytes:
    return _line(
        {
            "reference": question.reference.model_dump(mode="json"),
            "final_answer": question.attempt.final_answer,
            "artifacts": dict(question.attempt.artifacts),
            "budget_s": question.budget_s,
        }
    )


def read_question(line: bytes) -> Question:
    body = json.loads(line)
    return Question(
        reference=DomainRef.model_validate(body["reference"]),
        attempt=Attempt(body["final_answer"], body["artifacts"]),
        budget_s=float(body["budget_s"]),
    )


def write_answer(answer: Answer) -> bytes:
    judgement = answer.judgement
    body: dict[str, Any] = {"cpu_s": answer.cpu_s, "last": answer.last, "fault": outward(answer.fault)}
    if judgement is not None:
        components = list(judgement.components.items())[:_MAX_ENTRIES]
        body["judgement"] = {
            "verdict": judgement.verdict,
            "reward": judgement.reward,
            "reason": outward(judgement.reason),
            "components": {outward(str(name), 64): float(value) for name, value in components},
            "flags": [outward(str(flag), 64) for flag in judgement.flags[:_MAX_ENTRIES]],
        }
    if answer.request is not None:
        body["request"] = answer.request.plain()
    line = _line(body)
    if len(line) > MAX_LINE_BYTES:
        fault = f"the check request has {len(line):,} bytes: at most {MAX_LINE_BYTES:,} fit; make it smaller"
        return _line({"cpu_s": answer.cpu_s, "last": answer.last, "fault": fault})
    return line


def read_answer_line(line: bytes) -> Answer:
    """Raises `CheckerDied` for a line that is no answer."""
    try:
        body = json.loads(line)
        found = body.get("judgement")
        judgement = None
        if found is not None:
            judgement = Judgement(
                verdict=found["verdict"],
                reward=found["reward"],
                reason=found["reason"],
                components=found["components"],
                flags=tuple(found["flags"]),
            )
        wanted = body.get("request")
        request = None if wanted is None else CheckRequest.from_plain(wanted)
        return Answer(judgement, body["fault"], float(body["cpu_s"]), bool(body["last"]), request)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckerDied(f"a checking child answered {line[:80]!r}: that is no answer") from error


def _line(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"
