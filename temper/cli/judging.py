"""Lines through a check method: in order, several at once, and a bad one stops nothing.

Invariant: line n of the output is about line n of the input; every line that is not blank has one. A line that cannot
be judged, because it is no request or because of a fault of ours or of what it names, whatever that raises, gives
`{"error": …}` there. Nothing else is written to stdout while lines are judged: what a simulator prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO

from shared.errors import ConfigError, ContractError, TemperError
from shared.plain_errors import counted
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.settings import SandboxSettings
from shared.verification.judgement import Judgement
from shared.verification.methods.registry import Method, method, packages

Verdict = dict[str, Any]
_PROGRESS_S = 5.0
_MAX_KEYS = 20
"""Unknown keys that are spoken of; a data set with more of them is known to have its own."""
_ECHOED = ("id", "task_id")
"""Keys that a line may carry to be found again; they are given back."""


def judge_lines(
    name: str, options: Mapping[str, Any], lines: Iterable[bytes], sandbox: SandboxSettings
) -> int:
    """Writes a verdict a line to stdout, progress to stderr; the number of lines that gave an error."""
    chosen = method(name)
    given = dict(options)
    limits = _limits(given.pop("limits", {}))
    chosen.read_defaults(given)
    keys = Keys(name, (*chosen.request.model_fields, "limits"))

    async def work() -> int:
        if not chosen.jailed:
            return await _all(lines, lambda record: _judged(chosen, None, record, given, limits), 1, keys)
        needed = packages([name])
        settings = sandbox.model_copy(
            update={"python_packages": tuple(dict.fromkeys((*sandbox.python_packages, *needed)))}
        )
        async with Sandbox(settings) as box:
            return await _all(
                lines, lambda record: _judged(chosen, box, record, given, limits), os.cpu_count() or 1, keys
            )

    return asyncio.run(work())


def judge_in_order(judge: Callable[[Mapping[str, Any]], Verdict], lines: Iterable[bytes], keys: Keys) -> int:
    """As `judge_lines`, for a judge that needs no sandbox."""

    async def one(record: dict[str, Any]) -> Verdict:
        return judge(record)

    return asyncio.run(_all(lines, one, 1, keys))


async def _judged(
    chosen: Method, box: Any, record: dict[str, Any], options: Mapping[str, Any], limits: Limits
) -> Verdict:
    own = (
        _limits({**_as_dict(limits), **record["limits"]})
        if isinstance(record.get("limits"), dict)
        else limits
    )
    return as_verdict(await chosen.check(box, chosen.read(record, options), own))


def as_verdict(judged: Judgement) -> Verdict:
    return {
        "verdict": judged.verdict,
        "reward": judged.reward,
        "reason": judged.reason,
        "flags": list(judged.flags),
        **({"components": dict(judged.components)} if judged.components else {}),
    }


async def _all(
    lines: Iterable[bytes], judge: Callable[[dict[str, Any]], Awaitable[Verdict]], at_once: int, keys: Keys
) -> int:
    """Up to `at_once` lines in work; the oldest is written first, so the order is that of the input."""
    waiting: deque[asyncio.Future[Verdict]] = deque()
    progress = _Progress(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            async for number, line in _numbered(lines):
                waiting.append(asyncio.ensure_future(_line(number, line, judge, keys)))
                if len(waiting) >= at_once:
                    progress.told(await waiting.popleft())
            while waiting:
                progress.told(await waiting.popleft())
    finally:
        for left in waiting:
            left.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return progress.errors


async def _line(
    number: int, line: bytes, judge: Callable[[dict[str, Any]], Awaitable[Verdict]], keys: Keys
) -> Verdict:
    echoed: Verdict = {}
    try:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ContractError(f"it is no JSON ({type(error).__name__})") from error
        if not isinstance(record, dict):
            raise ContractError("it is no JSON object")
        echoed = {key: record[key] for key in _ECHOED if key in record}
        keys.told(number, record)
        return {**echoed, **await judge(record)}
    except TemperError as error:
        return {**echoed, "error": f"line {number}: {' '.join(str(error).split())}"}
    except (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - `SystemExit` too: one line never ends the others
        said = " ".join(str(error).split())[:300]
        return {
            **echoed,
            "error": f"line {number}: a fault that nobody foresaw: {type(error).__name__}: {said}",
        }


async def _numbered(lines: Iterable[bytes]) -> AsyncIterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers from 1; read in a thread, for a pipe may keep us waiting."""
    source = enumerate(lines, start=1)
    while True:
        found = await asyncio.to_thread(_next, source)
        if found is None:
            return
        if found[1].strip():
            yield found


def _next(source: Iterator[tuple[int, bytes]]) -> tuple[int, bytes] | None:
    return next(source, None)


class Keys:
    """Keys of lines that no field has: ignored, since a data set has its own, and said once each on stderr, since
    `schema` for `setup` would judge every attempt on an empty database."""

    def __init__(self, method: str, fields: Iterable[str]) -> None:
        self._method = method
        self._known = (*fields, *_ECHOED)
        self._seen: set[str] = set()

    def told(self, number: int, record: Mapping[str, Any]) -> None:
        for key in record:
            if key in self._known or key in self._seen or len(self._seen) >= _MAX_KEYS:
                continue
            self._seen.add(key)
            near = difflib.get_close_matches(key, self._known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self._known)}"
            print(
                f"temper: line {number}: key {key[:80]!a} is no field of method {self._method!r}, and ignored; {hint}",
                file=sys.stderr, flush=True,
            )  # fmt: skip


class _Progress:
    """Verdicts to stdout at once; every few seconds how far we are, to stderr."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.lines = self.errors = self.passed = 0
        self._last = time.monotonic()

    def told(self, verdict: Verdict) -> None:
        print(json.dumps(verdict, ensure_ascii=True), file=self._out, flush=True)
        self.lines += 1
        self.errors += "error" in verdict
        self.passed += verdict.get("verdict") == "passed"
        if time.monotonic() - self._last >= _PROGRESS_S:
            self._last = time.monotonic()
            print(
                f"{counted(self.lines, 'line')}, {self.passed} passed, {counted(self.errors, 'error')}",
                file=sys.stderr,
                flush=True,
            )


def _limits(given: Any) -> Limits:
    """Raises `ConfigError` for what is no limit."""
    known = Limits.__dataclass_fields__
    if not isinstance(given, Mapping):
        raise ConfigError(f'limits are {given!r}: give an object such as {{"wall_s": 10}}')
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"limit {name!r} is unknown; known: {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"limit {name} is {value!r}: it must be a number")
    return Limits(**given)


def _as_dict(limits: Limits) -> dict[str, Any]:
    return {name: getattr(limits, name) for name in Limits.__dataclass_fields__}
