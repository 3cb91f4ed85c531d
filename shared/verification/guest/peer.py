"""Calls between two processes: each uses callables, iterators and awaitables of the other through the channel.

Invariant: only plain data crosses (see `codec`); a handle names an object that its owner gave out itself, so the
other side can use nothing else. One conversation, strictly nested: who waits for a reply serves calls meanwhile.

Frames: `C` verb, handle and arguments; `R` a reply: the result and changed arguments; `E` an exception by name;
`O` a value that may not leave its process (a class of its own, too large, a tuple in a cycle); `X` the callee left by
`SystemExit`, `KeyboardInterrupt` or `GeneratorExit`.
"""

from __future__ import annotations

import builtins
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from shared.verification.guest.channel import Channel
from shared.verification.guest.codec import Decoder, Encoder, TooLarge
from shared.verification.guest.kinds import Foreign, Malformed, handle_kind, is_mutable

CALL, REPLY, RAISED, FOREIGN, LEFT = b"C", b"R", b"E", b"O", b"X"
_SLOW_START = 64
"""Items that an iterator gives one at a time; then in growing pieces, of at most `_PIECE` or `_PIECE_S` seconds."""
_PIECE = 4096
_PIECE_S = 0.005
_LOOP_ENDS = (StopIteration, StopAsyncIteration)
"""Out of a call they would end a loop of the test (`map`, `all`, a generator) as if it were through: PEP 479's rule
holds for calls, too. An iterator's own end travels otherwise."""
_HEDGE = re.compile(r"\s*-?[\w.,/]{1,40}\s+or\s+-?[\w.,/]{1,40}\s*", re.IGNORECASE)


class CandidateError(Exception):
    """An exception of the other side that has no builtin name."""


class Refused(BaseException):
    """A value could not leave its process; not an `Exception`, so that no `except Exception` passes over it."""


class Departed(BaseException):
    """The callee asked its process to end."""


class Peer:
    """One end. `note` is told of events worth a flag."""

    def __init__(self, channel: Channel, note: Callable[[str], None] = lambda event: None) -> None:
        self._channel = channel
        self._note = note
        self._exports: list[Any] = []
        self._exported: dict[int, int] = {}
        self._stubs: dict[int, int] = {}
        self._kept: list[Any] = []
        self._turn = threading.RLock()
        self._buffers: dict[int, list[Any]] = {}
        self.raised: list[BaseException] = []
        """Exceptions that came from the other side."""
        self.calls = 0
        self.mirrors = True
        """Whether changes that the other side made to arguments are made here, too."""
        self.changed = False
        """Whether there were any."""

    # --- using the other side's objects ---

    def stub(self, number: int, kind: str, name: str = "candidate") -> Any:
        """An object that stands for handle `number` of the other side."""
        if kind == "function":

            def remote(*arguments: Any, **keywords: Any) -> Any:
                return self.ask("call", number, arguments, keywords)

            remote.__name__ = remote.__qualname__ = name
            made: Any = remote
        elif kind == "iterator":
            made = self._pieces(number)
        elif kind == "awaitable":

            async def waited() -> Any:
                return self.ask("await", number, (), {})

            made = waited()
        else:
            raise Malformed(f"a handle of kind {kind!r}")
        self._stubs[id(made)] = number
        self._kept.append(made)
        return made

    def ask(self, verb: str, number: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """What the other side answers; serves its calls meanwhile."""
        with self._turn:
            self.calls += 1
            encoder = Encoder(self._handle)
            body = encoder.encode((arguments, keywords))
            self._channel.send(CALL, _head(verb, number) + body)
            while True:
                kind, payload = self._channel.receive()
                if kind == CALL:
                    self.answer(payload)
                elif kind == REPLY:
                    return self._taken(payload, encoder.objects, (arguments, keywords), body)
                elif kind == RAISED:
                    raise self._exception(payload)
                elif kind == LEFT:
                    raise Departed("the other side left")
                else:
                    raise Refused(f"a frame of kind {kind!r} where a reply was due")

    def _taken(self, payload: bytes, objects: list[Any], given: Any, body: bytes) -> Any:
        """The result of a call. The arguments are looked at themselves: the other side's word is not taken for it."""
        decoder = Decoder(self._resolve, objects, apart=not self.mirrors)
        result = decoder.decode(payload)[0]
        if decoder.referred and self.mirrors and not self.changed:
            try:
                self.changed = Encoder(self._handle).encode(given) != body
            except (Foreign, TooLarge):
                self.changed = True
        return result

    def _pieces(self, number: int) -> Iterator[Any]:
        size, taken = 1, 0
        while True:
            items, end = self.ask("next", number, (size,), {})
            yield from items
            if end == "stop":
                return
            if end == "raised":
                self.ask("next", number, (1,), {})
            taken += len(items)
            size = 1 if taken < _SLOW_START else min(_PIECE, size * 2)

    # --- serving ours ---

    def export(self, value: Any) -> int:
        """The handle of one of our objects."""
        if id(value) not in self._exported:
            self._exported[id(value)] = len(self._exports)
            self._exports.append(value)
        return self._exported[id(value)]

    def answer(self, payload: bytes) -> None:
        """Serves one call. Whatever our function does ends in one frame."""
        decoder = Decoder(self._resolve)
        verb = ""
        try:
            verb, number, body = _split(payload)
            arguments, keywords = decoder.decode(body)
            result = self._perform(verb, self._exports[number], arguments, keywords)
            reply = self._reply(result, arguments, keywords, body, decoder.memo)
            if type(result) is str and _HEDGE.fullmatch(result[:101]):
                self._note("hedge")
        except Foreign as error:
            self._note("foreign")
            self._channel.send(FOREIGN, str(error).encode("utf-8", "replace")[:200])
        except TooLarge as error:
            self._channel.send(FOREIGN, str(error).encode())
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            self._note("exit")
            self._channel.send(LEFT, type(error).__name__.encode())
        except Exception as error:  # noqa: BLE001 -- it is the other side's to handle
            if isinstance(error, _LOOP_ENDS) and verb == "call":
                self._note("stop")
            self._channel.send(RAISED, self.described(error))
        else:
            self._channel.send(REPLY, reply)

    def _perform(self, verb: str, target: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if verb == "call":
            return target(*arguments, **keywords)
        if verb == "await":
            import asyncio

            return asyncio.run(_awaiting(target))
        if verb == "next":
            return self._next(target, arguments[0])
        raise Malformed(f"no such verb: {verb!r}")

    def _next(self, target: Any, count: int) -> tuple[list[Any], str]:
        """Up to `count` items, and how it went on: `more`, `stop` or `raised` (the exception comes when asked again)."""
        held = self._buffers.pop(id(target), None)
        if held:
            raise held[0]
        items: list[Any] = []
        until = time.monotonic() + _PIECE_S
        while len(items) < count and (not items or time.monotonic() < until):
            try:
                items.append(next(target))
            except StopIteration:
                return items, "stop"
            except Exception as error:
                if not items:
                    raise
                self._buffers[id(target)] = [error]
                return items, "raised"
        return items, "more"

    def _reply(
        self, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], body: bytes, memo: list[Any]
    ) -> bytes:
        changed: Any = None
        if Encoder(self._handle).encode((arguments, keywords)) != body:
            changed = (arguments, keywords)
        known = {id(value): number for number, value in enumerate(memo) if is_mutable(value)}
        return Encoder(self._handle, known).encode((result, changed))

    def _handle(self, value: Any) -> tuple[str, int]:
        number = self._stubs.get(id(value))
        if number is not None:
            return "H", number
        handle_kind(value)
        return "h", self.export(value)

    def _resolve(self, way: str, number: int, kind: str) -> Any:
        return self._exports[number] if way == "H" else self.stub(number, kind)

    # --- exceptions ---

    def described(self, error: Exception) -> bytes:
        names = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
        told = (type(error).__name__, names, _message(error))
        try:
            return Encoder().encode((*told, tuple(error.args)))
        except (Foreign, TooLarge):
            return Encoder().encode((*told, (_message(error),)))

    def _exception(self, payload: bytes) -> Exception:
        """The nearest builtin exception; its name comes from the other side, its class never does."""
        name, builtin_names, message, arguments = Decoder().decode(payload)
        made: Exception = CandidateError(f"{name}: {message}")
        for candidate in builtin_names:
            kind = getattr(builtins, candidate, None)
            if isinstance(kind, type) and issubclass(kind, Exception):
                if kind in _LOOP_ENDS:
                    made = RuntimeError(f"{name} out of a call")
                elif kind is not Exception or name == "Exception":
                    made = _constructed(kind, arguments, message)
                break
        self.raised.append(made)
        return made


def _constructed(kind: type[Exception], arguments: Any, message: str) -> Exception:
    try:
        return kind(*arguments)
    except Exception:  # noqa: BLE001 -- a class with a signature of its own, such as UnicodeDecodeError
        return CandidateError(f"{kind.__name__}: {message}")


async def _awaiting(target: Any) -> Any:
    return await target


def _message(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 -- `__str__` is the candidate's
        return ""
    return text[:1000]


def _head(verb: str, number: int) -> bytes:
    return f"{verb} {number}\n".encode("ascii")


def _split(payload: bytes) -> tuple[str, int, bytes]:
    head, _, body = payload.partition(b"\n")
    verb, number = head.decode("ascii").split(" ")
    return verb, int(number), body
