"""The process of a candidate: loads its source and serves calls of its entry point. Holds nothing worth stealing.

Invariant: no expected value, no test and no other candidate's data ever comes here; what goes out is plain data.

Frames in: `L` (source, entry point), then calls; `Q` ends. Frames out: `L` loaded, `M` no such entry point,
`S` does not compile, `E` raised while loading, `X` left while loading, `N` an event for the flags, then replies.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types
from typing import Any

from shared.verification.guest.channel import Channel, Closed
from shared.verification.guest.codec import Decoder
from shared.verification.guest.peer import LEFT, RAISED, Peer
from shared.verification.guest.watch import watch

LOAD, LOADED, MISSING, UNREADABLE, NOTE, QUIT = b"L", b"L", b"M", b"S", b"N", b"Q"
PLACE = "/work/candidate.py"
NAME = "candidate"


def main() -> None:
    """Serves until the other side lets go; leaves without exit handlers, which are the candidate's."""
    channel = Channel()
    with contextlib.suppress(Closed):
        _serve(channel)
    _leave()


def _serve(channel: Channel) -> None:
    kind, payload = channel.receive()
    if kind != LOAD:
        return
    source, entry = Decoder().decode(payload)

    def note(event: str) -> None:
        channel.send(NOTE, event.encode("ascii"))

    peer = Peer(channel, note)
    target = _loaded(peer, channel, note, source, entry)
    if target is None:
        return
    peer.export(target)
    channel.send(LOADED)
    while True:
        kind, payload = channel.receive()
        if kind == QUIT:
            return
        peer.answer(payload)


def _loaded(peer: Peer, channel: Channel, note: Any, source: str, entry: str) -> Any:
    """The entry point, or None once the reason is told."""
    try:
        code = compile(source.removeprefix("\ufeff"), PLACE, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        channel.send(UNREADABLE, type(error).__name__.encode())
        return None
    module = _module(source)
    watch(PLACE.__eq__, note)
    try:
        exec(code, module.__dict__)
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        note("exit")
        channel.send(LEFT, type(error).__name__.encode())
        return None
    except Exception as error:  # noqa: BLE001 -- the candidate's own failure
        channel.send(RAISED, peer.described(error))
        return None
    target = module.__dict__.get(entry)
    if not callable(target):
        channel.send(MISSING)
        return None
    return target


def _module(source: str) -> types.ModuleType:
    """As an import would make it; the source is on disk, for those that read themselves."""
    module = types.ModuleType(NAME)
    module.__file__ = PLACE
    sys.modules[NAME] = module
    sys.argv = [PLACE]
    with contextlib.suppress(OSError), open(PLACE, "w", encoding="utf-8", errors="surrogatepass") as file:  # noqa: PTH123
        file.write(source)  # only for `inspect`: nothing depends on it
    return module


def _leave() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
    os._exit(0)
