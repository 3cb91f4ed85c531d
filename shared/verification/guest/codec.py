"""Plain data between two processes that do not trust each other.

Invariant: what `decode` gives is made of builtin and standard types only, whatever the bytes say; nothing is run,
looked up by a name from the other side, or compared by code of the other side. Both directions are iterative: depth
costs memory, never the stack. Sharing and cycles of lists and dicts survive; so do NaN, lone surrogates, big integers.

What has a class of its own is refused (`Foreign`), but subclasses of plain data travel as that data, named tuples
as named tuples of ours, data classes as `SimpleNamespace`, NumPy scalars as Python's, arrays as arrays where the
other side has NumPy and as nested lists where not. Callables, iterators and awaitables travel as handles: the object
stays at home and is used through the channel (`shared.verification.guest.peer`).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

from shared.verification.guest.kinds import Foreign, Malformed, built, handle_kind, refilled, tagged

MAX_BYTES = 7 << 20
"""Of one encoded value; a tester must hold it decoded, some ten times larger, in its own limits."""
TOO_MUCH = f"over {MAX_BYTES >> 20} MiB of data"
"""What `TooLarge` says, to whoever is at the other end too."""
_FAST = frozenset((int, float, str, bool, type(None)))
_FAST_LEAST = 8


class TooLarge(Exception):
    """A value over `MAX_BYTES`."""


def no_handle(value: Any) -> tuple[str, int]:
    """For values that may not hold callables, iterators or awaitables."""
    raise Foreign(type(value).__name__)


class Encoder:
    """One value to bytes.

    `handle` gives (kind, number) for an object that stays here: kind `h` for one of ours, `H` for one of theirs.
    `known`: containers that came from the other side, by identity, with their number there; they travel as changes
    of the original. `objects` afterwards: every container that was written, by number.
    """

    def __init__(self, handle: Any = no_handle, known: dict[int, int] | None = None) -> None:
        self._handle = handle
        self._known = known or {}
        self._memo: dict[int, int] = {}
        self._out = bytearray()
        self.objects: list[Any] = []
        self._kept: list[Any] = []

    def encode(self, value: Any) -> bytes:
        """Raises `Foreign` and `TooLarge`."""
        stack = [iter((value,))]
        while stack:
            for item in stack[-1]:
                inner = self._write(item)
                if inner is not None:
                    stack.append(inner)
                    break
            else:
                stack.pop()
                if len(self._out) > MAX_BYTES:
                    raise TooLarge(TOO_MUCH)
        return bytes(self._out)

    def _write(self, value: Any) -> Any:
        """Writes the head of a value; its parts are returned as an iterator, or None where there are none."""
        kind = type(value)
        writer = _SCALARS.get(kind)
        if writer is not None:
            writer(self._out, value)
            return None
        if len(self._out) > MAX_BYTES:
            raise TooLarge(TOO_MUCH)
        reference = self._memo.get(id(value))
        if reference is not None:
            self._out += b"r"
            _put(self._out, reference)
            return None
        return self._container(value, kind)

    def _container(self, value: Any, kind: type) -> Any:
        if kind in (list, tuple) and len(value) >= _FAST_LEAST:
            text = _fast(value)
            if text is not None:
                self._open(value, b"j" if kind is list else b"J")
                _put(self._out, len(text))
                self._out += text
                return None
        if kind in _COUNTED:
            self._open(value, _COUNTED[kind])
            _put(self._out, len(value))
            return _flat(value) if kind is dict else iter(value)
        return self._other(value, kind)

    def _open(self, value: Any, tag: bytes) -> None:
        number = self._known.get(id(value))
        if number is not None:
            self._out += b"P"
            _put(self._out, number)
        self._memo[id(value)] = len(self.objects)
        self.objects.append(value)
        self._out += tag

    def _other(self, value: Any, kind: type) -> Any:
        named = tagged(value, kind)
        if named is not None:
            name, content = named
            self._open(value, b"x")
            _text(self._out, name)
            self._kept.append(content)  # an identity in the memo must not be given to another object
            return iter((content,))
        base = _base_of(value)
        if base is not None:
            if base in _SCALARS:
                _SCALARS[base](self._out, value)
                return None
            self._open(value, _COUNTED[base])
            _put(self._out, base.__len__(value))
            return _flat(value) if base is dict else base.__iter__(value)
        way, number = self._handle(value)
        self._out += way.encode("ascii")
        _put(self._out, number)
        if way == "h":
            _text(self._out, handle_kind(value))
        return None


class Decoder:
    """Bytes to one value. `resolve(way, number, kind)` gives the object for a handle.

    `originals`: our own containers by number, which the other side may send back changed; with `apart` they stay as
    they are, and what came is a container of its own. Afterwards, `memo`: every container that was read, by number;
    `referred`: whether any original was.
    """

    def __init__(
        self, resolve: Any = None, originals: list[Any] | None = None, *, apart: bool = False
    ) -> None:
        self._resolve = resolve
        self._originals = originals or []
        self._apart = apart
        self.referred = False
        self.memo: list[Any] = []

    def decode(self, data: bytes) -> Any:
        """Raises `Malformed`, whatever is wrong."""
        try:
            return self._decode(data)
        except Malformed:
            raise
        except Exception as error:
            raise Malformed(f"{type(error).__name__} while reading a value") from error

    def _decode(self, data: bytes) -> Any:
        source = _Source(data)
        frames: list[_Frame] = []
        while True:
            value = self._read(source, frames)
            while value is not _OPENED:
                if not frames:
                    if source.left():
                        raise Malformed("bytes after the end of a value")
                    return value
                top = frames[-1]
                top.items.append(value)
                if len(top.items) < top.wanted:
                    break
                frames.pop()
                value = self._close(top)

    def _read(self, source: _Source, frames: list[_Frame]) -> Any:
        """A finished value, or `_OPENED` where its parts come next."""
        target: Any = None
        tag = source.tag()
        if tag == b"P":
            target = self._originals[source.number()]
            self.referred = True
            tag = source.tag()
            if tag in _READERS:
                raise Malformed("a value without parts in the place of a container")
            if self._apart:
                target = None
        if tag in _READERS:
            return _READERS[tag](source)
        if tag == b"r":
            value = self.memo[source.number()]
            if value is _OPENED:
                raise Malformed("a tuple that holds itself")
            return value
        if tag in (b"h", b"H"):
            number = source.number()
            kind = source.text() if tag == b"h" else ""
            if self._resolve is None:
                raise Malformed("a handle where none is allowed")
            return self._resolve(tag.decode("ascii"), number, kind)
        return self._opened(tag, source, frames, target)

    def _opened(self, tag: bytes, source: _Source, frames: list[_Frame], target: Any) -> Any:
        slot = len(self.memo)
        if tag in (b"j", b"J"):
            items = json.loads(source.raw(source.number()))
            if type(items) is not list:
                raise Malformed("no list where one was announced")
            frame = _Frame(tag, 0, items, slot, target, "")
        elif tag in _KINDS:
            count = source.number()
            frame = _Frame(tag, count * 2 if tag == b"m" else count, [], slot, target, "")
        elif tag == b"x":
            frame = _Frame(tag, 1, [], slot, target, source.text())
        else:
            raise Malformed(f"unknown tag {tag!r}")
        if frame.wanted > source.left():
            raise Malformed("more parts announced than there are bytes")
        self.memo.append(frame.early(target))
        if frame.wanted:
            frames.append(frame)
            return _OPENED
        return self._close(frame)

    def _close(self, frame: _Frame) -> Any:
        value = frame.finished(self.memo[frame.slot])
        self.memo[frame.slot] = value
        return value


@dataclass(slots=True)
class _Frame:
    """A container whose parts are being read."""

    tag: bytes
    wanted: int
    items: list[Any]
    slot: int
    target: Any
    name: str

    def early(self, target: Any) -> Any:
        """What a reference to the unfinished container gives: lists and dicts may hold themselves."""
        if target is not None:
            return target
        if self.tag == b"l":
            return self.items
        return {} if self.tag == b"m" else _OPENED

    def finished(self, early: Any) -> Any:
        if self.target is not None:
            return refilled(self.target, self._fresh(None))
        return self._fresh(early)

    def _fresh(self, early: Any) -> Any:
        if self.tag in (b"l", b"j"):
            return self.items
        if self.tag == b"m":
            made = {} if early is None else early
            made.update(zip(self.items[::2], self.items[1::2], strict=True))
            return made
        if self.tag == b"x":
            return built(self.name, self.items[0])
        return _KINDS[self.tag](self.items)


class _Source:
    """Reads forward, never past the end."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def left(self) -> int:
        return len(self._data) - self._at

    def raw(self, count: int) -> bytes:
        if count > self.left():
            raise Malformed("the value ends early")
        self._at += count
        return self._data[self._at - count : self._at]

    def tag(self) -> bytes:
        return self.raw(1)

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.raw(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7
            if shift > 63:
                raise Malformed("a length over 64 bits")

    def text(self) -> str:
        return self.raw(self.number()).decode("utf-8", "surrogatepass")


_OPENED: Any = object()


def _put(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _sized(tag: bytes, out: bytearray, raw: bytes) -> None:
    out += tag
    _put(out, len(raw))
    out += raw


def _text(out: bytearray, text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    _put(out, len(raw))
    out += raw


def _put_int(out: bytearray, value: int) -> None:
    bits = int.bit_length(value)
    _sized(b"i", out, int.to_bytes(value, bits // 8 + 1, "little", signed=True))


def _put_str(out: bytearray, value: str) -> None:
    _sized(b"s", out, str.encode(value, "utf-8", "surrogatepass"))


def _put_bytes(out: bytearray, value: bytes) -> None:
    _sized(b"b", out, bytes.__getitem__(value, slice(None)))


def _put_float(out: bytearray, value: float) -> None:
    out += b"d" + struct.pack("<d", value)


def _put_complex(out: bytearray, value: complex) -> None:
    out += b"c" + struct.pack("<dd", value.real, value.imag)


def _constant(tag: bytes) -> Any:
    def write(out: bytearray, value: Any) -> None:
        out.extend(tag)

    return write


def _put_bool(out: bytearray, value: bool) -> None:
    out += b"T" if value else b"F"


_SCALARS: dict[type, Any] = {
    type(None): _constant(b"N"),
    bool: _put_bool,
    int: _put_int,
    float: _put_float,
    complex: _put_complex,
    str: _put_str,
    bytes: _put_bytes,
    type(Ellipsis): _constant(b"."),
    type(NotImplemented): _constant(b"!"),
}
_READERS: dict[bytes, Any] = {
    b"N": lambda source: None,
    b"T": lambda source: True,
    b"F": lambda source: False,
    b"i": lambda source: int.from_bytes(source.raw(source.number()), "little", signed=True),
    b"d": lambda source: struct.unpack("<d", source.raw(8))[0],
    b"c": lambda source: complex(*struct.unpack("<dd", source.raw(16))),
    b"s": lambda source: source.text(),
    b"b": lambda source: source.raw(source.number()),
    b".": lambda source: Ellipsis,
    b"!": lambda source: NotImplemented,
}
_COUNTED: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"S", frozenset: b"Z", dict: b"m"}
_KINDS: dict[bytes, Any] = {b"l": list, b"t": tuple, b"S": set, b"Z": frozenset, b"m": dict, b"J": tuple}


def _fast(value: Any) -> bytes | None:
    """JSON, made in C, for a list of scalars only; None where JSON would not be exact."""
    if not _FAST.issuperset(map(type, value)):
        return None
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except ValueError:  # a lone surrogate, or an integer of over 4,300 digits
        return None
    return text


def _flat(value: Any) -> Any:
    for key, item in dict.items(value):
        yield key
        yield item


def _base_of(value: Any) -> Any:
    """The plain type that a subclass extends; its own methods are never asked."""
    for base in (int, float, complex, str, bytes, tuple, list, dict, set, frozenset):
        if isinstance(value, base) and type(value).__mro__.index(base) > 0:
            return base
    return None
