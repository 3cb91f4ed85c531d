"""A test and a candidate, each in its own jail, and we between them.

Invariant: frames pass through us unread but for their kind; the candidate's jail gets the candidate's source and the
arguments of calls, nothing else. Whose turn it is is always known, so a jail that ends, hangs or breaks the order is
blamed on the one it holds; but a tester that has had an answer and then works until its time or memory is used up is
blamed on the answer. Processor time tells work from waiting: a tester that got none is a fault of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shared.errors import VerificationFault
from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import Limits
from shared.sandbox.outcome import Outcome, Result
from shared.sandbox.prewarmed.child import Child
from shared.sandbox.sandbox import Sandbox
from shared.verification.detectors.flags import Flag
from shared.verification.detectors.runtime import flags_of_events
from shared.verification.faults import CheckTimedOut
from shared.verification.guest.codec import TOO_MUCH, Decoder, Encoder, TooLarge
from shared.verification.guest.kinds import Foreign, Malformed
from shared.verification.judgement import Judgement
from shared.verification.methods.base import MAX_READ_BYTES, ended_early, flags_of_result, limit_words
from shared.verification.methods.jails import guest, ready_imports

_LOAD, _LOADED, _MISSING, _UNREADABLE, _NOTE, _QUIT = b"L", b"L", b"M", b"S", b"N", b"Q"
_CALL, _REPLY, _RAISED, _FOREIGN, _LEFT = b"C", b"R", b"E", b"O", b"X"
_START, _FINISHED = b"T", b"F"
_TESTER_GRACE_S = 5.0
_BUSY = 0.8
"""Share of its turns' time that a tester computed, from which it is held to have worked and not to have waited for a
processor. On a machine too busy to grant that, it is once it has computed for as long as the whole check may take."""
_LOOK_S = 0.1
_PARTING_S = 10.0
"""A candidate answers a farewell at once; so long only on a machine that is far too busy."""
_MAX_NOTES = 64


@dataclass(frozen=True, slots=True)
class Script:
    """What the tester runs: `sources` (place, text) in order, then `function(candidate, *arguments)`. `mirrors`: whether
    changes that the candidate makes to arguments are made there, as if it had been called at home."""

    sources: Sequence[tuple[str, str]]
    function: str
    arguments: tuple[Any, ...] = ()
    mirrors: bool = True


@dataclass(frozen=True, slots=True)
class Finished:
    """What the tester said at its end: `outcome` as `shared.verification.guest.tester` lists them; `changed`: whether a
    call changed its arguments there."""

    outcome: str
    line: int
    told: str
    calls: int
    changed: bool = False


@dataclass(slots=True)
class Talk:
    """One conversation: the end of it is either the tester's `Finished` or a judgement that came before that."""

    flags: set[Flag] = field(default_factory=set)
    candidate_s: float = 0.0
    """Wall seconds in which it was the candidate's turn."""
    answers: int = 0
    """Frames from the candidate that the tester was handed."""
    notes: int = 0


async def converse(
    sandbox: Sandbox, source: str, entry: str, script: Script, limits: Limits
) -> tuple[Finished | Judgement, frozenset[Flag]]:
    """Runs the script against the candidate, and returns how it ended and what was seen on the way.

    Raises `SandboxFault` where a jail or the tester is lost, `CheckTimedOut` where time ran out on our side.
    """
    talk = Talk()
    own = replace(limits, wall_s=limits.wall_s + _TESTER_GRACE_S, cpu_s=limits.cpu_s + _TESTER_GRACE_S)
    needs = ready_imports(sandbox, source)
    its_needs = ready_imports(sandbox, *(text for _, text in script.sources))
    async with (
        guest(sandbox, "candidate", limits, imports=needs) as candidate,
        guest(sandbox, "tester", own, imports=its_needs) as tester,
    ):
        end = await _Relay(talk, candidate, tester, limits).run(source, entry, script)
        if isinstance(end, Finished):
            talk.flags |= await _parting(candidate)
    return end, frozenset(talk.flags)


async def alone(sandbox: Sandbox, script: Script, limits: Limits) -> Finished | Judgement:
    """Runs a script that calls no candidate, on what the policy answered. Raises as `converse` does."""
    async with guest(sandbox, "tester", limits) as tester:
        return await _Relay(Talk(answers=1), tester, tester, limits).run_alone(script)


class _Relay:
    """The turns of one conversation."""

    def __init__(self, talk: Talk, candidate: Child, tester: Child, limits: Limits) -> None:
        self._talk, self._candidate, self._tester, self._limits = talk, candidate, tester, limits
        self._nonce = secrets.token_bytes(16)
        self._started = time.monotonic()
        self._testers_turn = False
        self._cut = False

    async def run(self, source: str, entry: str, script: Script) -> Finished | Judgement:
        """To the end, which comes with the wall limit of the check where the tester is busy with an answer then."""
        clock = asyncio.ensure_future(self._cut_at_the_limit())
        try:
            return await self._turns(source, entry, script)
        finally:
            clock.cancel()
            await asyncio.gather(clock, return_exceptions=True)

    async def _cut_at_the_limit(self) -> None:
        await asyncio.sleep(self._limits.wall_s)
        while not (self._testers_turn and self._talk.answers and self._worked(self._tester.cpu_s)):
            await asyncio.sleep(_LOOK_S)
        self._cut = True
        await self._tester.kill()

    def _worked(self, cpu_s: float) -> bool:
        turns_s = time.monotonic() - self._started - self._talk.candidate_s
        return cpu_s >= min(_BUSY * turns_s, self._limits.wall_s)

    async def _turns(self, source: str, entry: str, script: Script) -> Finished | Judgement:
        await self._candidate.send(_LOAD + Encoder().encode((source, entry)))
        kind, payload = await self._from_candidate()
        if kind != _LOADED:
            return await self._not_loaded(kind, payload, entry)
        await self._start(script, entry)
        while True:
            self._testers_turn = True
            frame = await self._tester.receive()
            self._testers_turn = False
            if frame is None:
                return await self._tester_ended()
            kind = frame[:1]
            if kind == _FINISHED:
                return self._finished(frame[1:])
            if kind not in (_CALL, _REPLY, _RAISED):
                return self._tester_gave_up(kind, frame[1:])
            await self._candidate.send(frame)
            kind, payload = await self._from_candidate()
            if kind in (_CALL, _REPLY, _RAISED):
                self._talk.answers += 1
                await self._tester.send(kind + payload)
            else:
                return await self._broken_off(kind, payload, "in a call")

    async def run_alone(self, script: Script) -> Finished | Judgement:
        await self._start(script, "")
        frame = await self._tester.receive()
        if frame is None:
            return await self._tester_ended()
        if frame[:1] != _FINISHED:
            raise SandboxFault(f"a tester sent a frame of kind {frame[:1]!r} where it should have reported")
        return self._finished(frame[1:])

    async def _start(self, script: Script, entry: str) -> None:
        sources = [tuple(item) for item in script.sources]
        start = (self._nonce, sources, script.function, entry, script.arguments, script.mirrors)
        try:
            frame = _START + Encoder().encode(start)
        except (TooLarge, Foreign) as error:
            raise VerificationFault(
                f"a test or its inputs cannot be sent: {error}; mend the domain"
            ) from error
        await self._tester.send(frame)

    async def _from_candidate(self) -> tuple[bytes, bytes]:
        """The next frame that is no note; an empty kind where the candidate is gone."""
        started = time.monotonic()
        while True:
            frame = await self._candidate.receive()
            if frame is None or frame[:1] != _NOTE:
                self._talk.candidate_s += time.monotonic() - started
                return (frame[:1], frame[1:]) if frame else (b"", b"")
            self._talk.notes += 1
            if self._talk.notes <= _MAX_NOTES:
                self._talk.flags |= flags_of_events([frame[1:].decode("ascii", "replace")])

    async def _not_loaded(self, kind: bytes, payload: bytes, entry: str) -> Judgement:
        if kind == _MISSING:
            return Judgement.failed(f"the candidate defines no function {entry[:80]!a}")
        if kind == _UNREADABLE:
            return Judgement.failed("the candidate does not compile")
        if kind == _RAISED:
            return Judgement.failed(f"the candidate raised {_raised(payload)} while loading")
        return await self._broken_off(kind, payload, "while loading")

    async def _broken_off(self, kind: bytes, payload: bytes, when: str) -> Judgement:
        if kind == _LEFT:
            judged = Judgement.failed(f"the candidate asked to leave ({_word(payload)}) {when}")
            return judged.flagged([Flag.EXIT_IN_CANDIDATE])
        if kind == _FOREIGN:
            judged = Judgement.failed(f"the candidate returned what is no plain data: {_word(payload)}")
            return judged.flagged([Flag.FOREIGN_OBJECT])
        if kind:
            judged = Judgement.failed("the candidate's process wrote to the checker's channel")
            return judged.flagged([Flag.TEST_RUNNER_PATCHED])
        return ended_early(await self._candidate.finish(), when)

    def _finished(self, payload: bytes) -> Finished:
        try:
            nonce, calls, changed, outcome, line, told = Decoder().decode(payload)
        except (Malformed, ValueError, TypeError) as error:
            raise SandboxFault("a tester ended with a report that nobody can read") from error
        if nonce != self._nonce:
            raise SandboxFault("a tester ended with a report that is not of this check")
        return Finished(str(outcome), int(line), str(told), int(calls), bool(changed))

    def _tester_gave_up(self, kind: bytes, word: bytes) -> Judgement:
        """A callback of the test gave what may not travel, or left: the test is not made for this. But how much it gives
        is what the candidate asked it for."""
        if kind == _FOREIGN and word.startswith(TOO_MUCH.encode()):
            judged = Judgement.failed("the candidate asked a function of the test for more than can be sent")
            return judged.flagged([Flag.CHECKER_EXHAUSTED])
        if kind in (_FOREIGN, _LEFT):
            return Judgement.unverifiable("the test hands the candidate what is no plain data: mend the test")
        raise SandboxFault(f"a tester sent a frame of kind {kind!r}, which does not exist")

    async def _tester_ended(self) -> Judgement:
        result = await self._tester.finish()
        words = limit_words(Outcome.CPU_LIMIT if self._cut else result.outcome)
        if words is None:
            raise SandboxFault(f"a tester ended without a report ({_how(result)})")
        if result.outcome is Outcome.WALL_LIMIT and not self._worked(result.usage.cpu_s):
            raise CheckTimedOut("a test did not end in its time, and was not computing for most of it")
        if not self._talk.answers:
            return Judgement.unverifiable(f"the test reached {words} by itself: mend the test")
        judged = Judgement.failed(f"the test reached {words} on what the candidate returned")
        return judged.flagged([Flag.CHECKER_EXHAUSTED])


async def _parting(candidate: Child) -> set[Flag]:
    """Lets the candidate go, and looks at what it printed and left."""
    with contextlib.suppress(TimeoutError, SandboxFault):
        async with asyncio.timeout(_PARTING_S):
            await candidate.send(_QUIT)
            while await candidate.receive() is not None:
                pass
            return flags_of_result(await candidate.finish())
    return set()


def _how(result: Result) -> str:
    return f"{result.outcome}, exit code {result.exit_code}, signal {result.signal}"


def _word(payload: bytes) -> str:
    return payload[:80].decode("utf-8", "replace").encode("ascii", "backslashreplace").decode("ascii")


def _raised(payload: bytes) -> str:
    """The class of the exception only: its message may hold addresses and paths."""
    if len(payload) > MAX_READ_BYTES:
        return "an exception"
    try:
        name = Decoder().decode(payload)[0]
    except (Malformed, IndexError, TypeError, KeyError):
        return "an exception"
    return _word(str(name).encode("utf-8", "replace"))
