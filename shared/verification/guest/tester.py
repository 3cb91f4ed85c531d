"""The process of the tests: runs `check(candidate)` against a candidate that lives elsewhere.

Invariant: it says `finished` only after `check` has returned; and every object in it was made here or by the codec.
The policy's code is never in this process.

Frames in: `T` (nonce, sources, name of the check, name of the candidate, further arguments, whether the candidate's
changes of its arguments are made here). Frames out: calls, and one `F` (nonce, calls, whether arguments were changed,
outcome, line, kind) at the end. Outcomes: `passed`, `assertion`, `raised` (by the candidate, through the test), `broke` (the test
could not go on with what it got), `departed`, `refused`, `malformed`, `test_error` (the test itself is wrong).
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
import types
from typing import Any

from shared.verification.guest.channel import Channel, Closed
from shared.verification.guest.codec import Decoder, Encoder, TooLarge
from shared.verification.guest.kinds import Foreign, Malformed
from shared.verification.guest.peer import Departed, Peer, Refused

START, FINISHED = b"T", b"F"
PLACE = "/work/hidden_test.py"


def main() -> None:
    """One test; leaves when told or when the other side is gone."""
    channel = Channel()
    try:
        kind, payload = channel.receive()
        if kind == START:
            nonce, sources, function, entry, arguments, mirrors = Decoder().decode(
                payload
            )  # no entry: no candidate
            peer = Peer(channel)
            peer.mirrors = mirrors
            outcome = _outcome(peer, sources, (function, entry), arguments)
            channel.send(FINISHED, Encoder().encode((nonce, peer.calls, peer.changed, *outcome)))
            channel.receive()
    except Closed:
        pass
    os._exit(0)


def _outcome(peer: Peer, sources: Any, names: tuple[str, str], arguments: Any) -> tuple[str, int, str]:
    """(outcome, line of the test, name of an exception or a value)."""
    function, entry = names
    candidate = peer.stub(0, "function", entry)
    try:
        module = types.ModuleType("hidden_test")
        module.__file__ = PLACE
        sys.modules["hidden_test"] = module
        for place, source in sources:
            if entry:
                module.__dict__[entry] = (
                    candidate  # tests may call it by its own name, unless they define that
                )
            text = source.removeprefix("\ufeff")
            exec(compile(text, place, "exec", dont_inherit=True, optimize=0), module.__dict__)
        check = module.__dict__.get(function)
        if not callable(check):
            return "test_error", 0, f"defines no {function}"
    except BaseException as error:  # noqa: BLE001 -- the test's own mistake
        return "test_error", _line(error), type(error).__name__
    try:
        result = check(candidate, *arguments)
        if inspect.iscoroutine(result):
            import asyncio

            result = asyncio.run(result)
        elif inspect.isgenerator(result) or inspect.isasyncgen(result):
            return "test_error", 0, "is a generator: it would not run"
    except Closed:
        raise
    except BaseException as error:  # noqa: BLE001 -- each is an outcome
        return _failure(peer, error, answered=peer.calls > 0 or not entry)
    return "passed", 0, _told(result)


def _told(result: Any) -> str:
    return "" if result is None else repr(result) if type(result) is bool else type(result).__name__


def _failure(peer: Peer, error: BaseException, *, answered: bool) -> tuple[str, int, str]:
    """`answered`: whether the test has had anything of the candidate's that it could stumble over."""
    name, line = type(error).__name__, _line(error)
    if isinstance(error, Departed):
        return "departed", line, name
    if isinstance(error, Refused):
        return "refused", line, name
    if isinstance(error, Malformed):
        return "malformed", line, name
    if isinstance(error, Foreign | TooLarge):
        return "test_error", line, "passes on what is no plain data"
    if any(error is known for known in peer.raised):
        return "raised", line, name
    if isinstance(error, AssertionError):
        case = error.args[0] if name == "CaseFailed" and error.args else None
        return "assertion", line, str(case) if type(case) is int else name
    if not answered or not isinstance(error, Exception) or _is_own_mistake(error):
        return "test_error", line, name
    return "broke", line, name


def _is_own_mistake(error: Exception) -> bool:
    """Whether the test is wrong whatever the candidate answered: it says a name that nothing has, or imports what is
    not there. Not so a name in a text that the candidate wrote and the test evaluates, such text that does not compile,
    or a variable that only a right answer binds: or it would pay to answer nonsense rather than something wrong."""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        return any(name.startswith("<frozen importlib") for name in frames)
    if isinstance(error, NameError):
        unbound = isinstance(error, UnboundLocalError) or "free variable" in str(error)
        return not unbound and frames[-1] not in ("<string>", "<unknown>")
    return isinstance(error, ImportError | NotImplementedError)


def _line(error: BaseException) -> int:
    """Of the test, where it was when `error` came."""
    lines = [
        number
        for frame, number in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == PLACE
    ]
    return lines[-1] if lines else 0
