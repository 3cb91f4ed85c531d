"""One named test of a repository under pytest, in a jail of its own.

Invariant: everything that pytest and this program need is imported before the repository is on the import path, no
configuration of the repository is read, and the path is appended, so that no module of it takes another's place. The
tested code shares this process and can forge all that is said here: the caller's control tests are there for that.

Frames in: `W` ((path, piece), …) pieces of files, then `T` (token, test id, watched paths, hidden paths, read
conftest). Frames out: `N` an event for the flags, `R` (token, test id, phase, outcome, xfail) as they come, and `F` (token, exit status, collected) at the end.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from shared.verification.guest.channel import Channel, Closed
from shared.verification.guest.codec import Decoder, Encoder
from shared.verification.guest.watch import watch

FILES, START, REPORT, FINISHED, NOTE = b"W", b"T", b"R", b"F", b"N"
PLACE = "/work/repository"
_PLAIN = frozenset((int, float, complex, str, bytes, list, tuple, dict, set, frozenset))
_EARLY = (
    "pytest", "unittest", "unittest.mock", "doctest", "logging", "tempfile", "shutil", "json", "re", "inspect", "ast", "traceback",
    "warnings", "collections", "dataclasses", "functools", "importlib.metadata", "operator", "math", "time", "datetime",
    "pathlib", "random", "statistics", "decimal", "fractions", "itertools", "contextlib", "copy", "io", "string",
)  # fmt: skip


def main() -> None:
    channel = Channel()
    status = 70
    try:
        while True:
            kind, payload = channel.receive()
            if kind == FILES:
                _write(Decoder().decode(payload))
            elif kind == START:
                status = _run(channel, Decoder().decode(payload))
                break
            else:
                break
    except Closed:
        pass
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _write(files: Any) -> None:
    for path, content in files:
        place = os.path.join(PLACE, path)  # noqa: PTH118 -- light
        os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120
        with open(place, "ab") as file:  # noqa: PTH123
            file.write(content)


def _run(channel: Channel, job: Any) -> int:
    token, test, watched, hidden, read_conftest = job
    for name in _EARLY:
        __import__(name)
    import pytest

    for name in [name for name in os.environ if name.startswith(("PYTEST_", "PYTHON"))]:
        del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.makedirs(PLACE, exist_ok=True)  # noqa: PTH103
    os.chdir(PLACE)
    sys.path += [PLACE, os.path.join(PLACE, "src")]  # noqa: PTH118
    sys.argv[:] = ["pytest"]
    sys.dont_write_bytecode = True
    own = frozenset(os.path.join(PLACE, path) for path in watched)  # noqa: PTH118
    tests = frozenset(os.path.join(PLACE, path) for path in hidden)  # noqa: PTH118
    watch(own.__contains__, lambda word: channel.send(NOTE, word.encode("ascii")), tests)

    def look() -> None:
        if patched_equality(own):
            channel.send(NOTE, b"equality")

    recorder = _recorder(channel.send, token, look)
    fixed = [
        "-c", "/dev/null", f"--rootdir={PLACE}", "--import-mode=append", "-p", "no:cacheprovider", "-p", "no:terminal",
        "--override-ini=addopts=", "--override-ini=xfail_strict=true", *(() if read_conftest else ("--noconftest",)),
    ]  # fmt: skip
    status = int(pytest.main([*fixed, test], plugins=[recorder]))
    channel.send(FINISHED, Encoder().encode((token, status, recorder.collected)))
    return status


def patched_equality(own: frozenset[str]) -> bool:
    """Whether a class of the tested code got an `__eq__` that was not written as one: under another name (`setattr`,
    `type(...)`) or from text; or passes for plain data and compares by itself. What decorators and data classes make is
    as good as written."""
    return any(
        not _written(kind, own) or _disguised(kind, own) for kind in _classes() if "__eq__" in _content(kind)
    )


def _disguised(kind: type, own: frozenset[str]) -> bool:
    """A number, text or container to look at, of which the tested code says what it is equal to."""
    code = getattr(_content(kind)["__eq__"], "__code__", None)
    return getattr(code, "co_filename", None) in own and not _PLAIN.isdisjoint(type.mro(kind))


def _classes() -> Iterator[type]:
    """All there are, by `type`'s own word."""
    seen: set[int] = set()
    left: list[type] = [object]
    while left:
        kind = left.pop()
        if id(kind) not in seen:
            seen.add(id(kind))
            left += type.__subclasses__(kind)
            yield kind


def _content(kind: type) -> Any:
    """What `vars` gives, whatever its metaclass says of that."""
    return type.__dict__["__dict__"].__get__(kind)


def _written(kind: type, own: frozenset[str]) -> bool:
    """Classes of others are not looked at: their functions lie elsewhere."""
    equal: Any = _content(kind)["__eq__"]
    if not isinstance(equal, types.FunctionType):
        home = getattr(sys.modules.get(str(_content(kind).get("__module__"))), "__file__", None)
        return equal is None or home not in own or getattr(equal, "__name__", "") == "__eq__"
    inner: Any = equal
    while isinstance(vars(inner).get("__wrapped__"), types.FunctionType):
        inner = vars(inner)["__wrapped__"]
    place = inner.__code__.co_filename
    if place in own:
        return bool(inner.__code__.co_name == "__eq__")
    made_of_text = place == "<string>" and inner.__globals__.get("__file__") in own
    return not made_of_text or "__dataclass_fields__" in _content(kind)


def _recorder(send: Callable[[bytes, bytes], None], token: bytes, look: Callable[[], None]) -> Any:
    class Recorder:
        """Each phase of each test is told at once."""

        collected = 0

        def pytest_collection_finish(self, session: Any) -> None:
            self.collected = len(session.items)

        def pytest_runtest_logreport(self, report: Any) -> None:
            told = (token, report.nodeid, report.when, report.outcome, hasattr(report, "wasxfail"))
            send(REPORT, Encoder().encode(told))
            if report.when == "call":  # classes that were made in it are still there
                look()

    return Recorder()
