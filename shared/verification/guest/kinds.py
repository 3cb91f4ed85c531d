"""Standard types beyond plain data, by value: how each is taken apart and put together.

Invariant: what is put together is of a standard type or made here, with no attribute that its data could turn into
behaviour; types are chosen from the table below, never looked up by a name from the other side.
"""

from __future__ import annotations

import array
import collections
import collections.abc
import dataclasses
import datetime
import decimal
import enum
import fractions
import operator
import pathlib
import struct
import sys
import types
import uuid
from typing import Any


class Foreign(Exception):
    """An object of a class of its own: not plain data. `args[0]` is the name of its class."""


class Malformed(Exception):
    """Bytes that are no encoded value, or one that refers to what is not there."""


def refilled(target: Any, fresh: Any) -> Any:
    """`target`, one of our own mutable containers, with the content of `fresh`."""
    if isinstance(target, list | bytearray | array.array) and type(fresh) is type(target):
        target[:] = fresh  # type: ignore[assignment]
    elif (isinstance(target, dict) and isinstance(fresh, dict)) or (
        isinstance(target, set) and isinstance(fresh, set)
    ):
        kept = fresh.copy()
        target.clear()
        target.update(kept)
    elif isinstance(target, collections.deque) and isinstance(fresh, collections.deque):
        kept_items = list(fresh)
        target.clear()
        target.extend(kept_items)
    elif _is_array(target) and _is_array(fresh) and target.shape == fresh.shape:
        target[...] = fresh
    else:
        raise Malformed(f"a {type(target).__name__} came back as a {type(fresh).__name__}")
    return target


def is_mutable(value: Any) -> bool:
    """Whether a change of it inside a call is seen by the caller."""
    return isinstance(value, list | dict | set | bytearray | collections.deque | array.array) or _is_array(
        value
    )


def handle_kind(value: Any) -> str:
    """How an object that stays at home is used: `iterator`, `awaitable` or `function`."""
    if isinstance(value, collections.abc.Iterator):
        return "iterator"
    if isinstance(value, types.CoroutineType):
        return "awaitable"
    if callable(value):
        return "function"
    raise Foreign(type(value).__name__)


def tagged(value: Any, kind: type) -> tuple[str, Any] | None:
    """(name, content in plain data) of a standard type, by exact type; None for every other."""
    maker = _TAGGED.get(kind)
    if maker is not None:
        found: tuple[str, Any] = maker(value)
        return found
    if kind.__module__ == "numpy" or kind.__module__.startswith("numpy."):
        return _from_numpy(value)
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        fields = tuple(field for field in kind._fields if type(field) is str)
        return "named", (kind.__name__, fields, tuple(tuple.__iter__(value)))
    if dataclasses.is_dataclass(value) and not isinstance(
        value, type | int | str | list | dict | tuple | float
    ):
        names = [field.name for field in dataclasses.fields(value) if not field.name.startswith("__")]
        return "record", {name: object.__getattribute__(value, name) for name in names}
    if isinstance(value, BaseException):
        return None
    if isinstance(value, pathlib.PurePath):
        return "path", str(value)
    if isinstance(value, type) and not isinstance(value, enum.EnumMeta) and value.__module__ == "builtins":
        return "type", value.__name__
    return None


def _numpy() -> Any:
    return sys.modules.get("numpy")


def _is_array(value: Any) -> bool:
    numpy = _numpy()
    return numpy is not None and isinstance(value, getattr(numpy, "ndarray", ()))


def _from_numpy(value: Any) -> tuple[str, Any] | None:
    numpy = _numpy()
    if numpy is None:
        return None
    if isinstance(value, numpy.ndarray):
        plain = numpy.ndarray.view(value, numpy.ndarray)
        if plain.dtype.kind in "biufc":
            little = numpy.ascontiguousarray(plain, plain.dtype.newbyteorder("<"))
            if little.dtype.str[1:] not in _CODES:  # long doubles: their layout is the machine's own
                return "ndlist", ("O", tuple(plain.shape), list(plain.astype(float).ravel().tolist()))
            return "ndarray", (little.dtype.str, tuple(plain.shape), little.tobytes())
        if plain.dtype.kind in "mMV":
            return None
        return "ndlist", (plain.dtype.kind, tuple(plain.shape), list(plain.ravel().tolist()))
    if isinstance(value, numpy.generic):
        return "plain", numpy.generic.item(value)
    return None


_TAGGED: dict[type, Any] = {
    range: lambda v: ("range", (v.start, v.stop, v.step)),
    slice: lambda v: ("slice", (v.start, v.stop, v.step)),
    bytearray: lambda v: ("bytearray", bytes(v)),
    memoryview: lambda v: ("plain", v.tobytes()),
    array.array: lambda v: ("array", (v.typecode, v.tolist())),
    collections.deque: lambda v: ("deque", (list(v), v.maxlen)),
    collections.OrderedDict: lambda v: ("ordered", list(v.items())),
    collections.Counter: lambda v: ("counter", list(v.items())),
    collections.defaultdict: lambda v: ("default", list(v.items())),
    types.MappingProxyType: lambda v: ("plain", dict(v)),
    types.SimpleNamespace: lambda v: ("record", {k: x for k, x in vars(v).items() if not k.startswith("__")}),
    type({}.keys()): lambda v: ("keys", list(v)),
    type({}.values()): lambda v: ("values", list(v)),
    type({}.items()): lambda v: ("items", list(v)),
    datetime.datetime: lambda v: ("datetime", (v.isoformat(), v.fold)),
    datetime.date: lambda v: ("date", v.isoformat()),
    datetime.time: lambda v: ("time", (v.isoformat(), v.fold)),
    datetime.timedelta: lambda v: ("timedelta", (v.days, v.seconds, v.microseconds)),
    datetime.timezone: lambda v: ("timezone", v.utcoffset(None)),
    decimal.Decimal: lambda v: ("decimal", str(v)),
    fractions.Fraction: lambda v: ("fraction", (v.numerator, v.denominator)),
    uuid.UUID: lambda v: ("uuid", v.int),
}


_CODES = {"b1": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q", "f2": "e",
          "f4": "f", "f8": "d", "c8": "ff", "c16": "dd"}  # fmt: skip
"""NumPy's kinds of numbers, and how `struct` reads one."""


def _as_ndarray(content: Any) -> Any:
    dtype, shape, raw = content
    if dtype[:1] not in "<|" or dtype[1:] not in _CODES:
        raise Malformed(f"no such kind of array: {dtype!r}")
    try:
        import numpy
    except ImportError:
        return _nested(list(_unpacked(dtype, raw)), list(shape))
    return numpy.frombuffer(bytes(raw), numpy.dtype(dtype)).reshape(shape).copy()


def _unpacked(dtype: str, raw: bytes) -> Any:
    code = _CODES[dtype[1:]]
    if len(code) == 2:
        return (complex(*item) for item in struct.iter_unpack("<" + code, raw))
    return (item[0] for item in struct.iter_unpack("<" + code, raw))


def _as_ndlist(content: Any) -> Any:
    kind, shape, items = content
    try:
        import numpy
    except ImportError:
        return _nested(items, list(shape))
    if kind in "US":
        return numpy.array(items).reshape(shape)
    made = numpy.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        made[index] = item
    return made.reshape(shape)


def _nested(items: list[Any], shape: list[int]) -> Any:
    if not shape:
        return items[0]
    for size in reversed(shape[1:]):
        items = [items[at : at + size] for at in range(0, len(items), size)] if size else []
    return items


def _as_named(content: Any) -> Any:
    """A tuple with names for its places; a name with a leading underscore could be behaviour, and is refused."""
    name, fields, values = content
    if any(not field.isidentifier() or field.startswith("_") for field in fields) or not name.isidentifier():
        raise Malformed("a named tuple with names that are none")
    places: dict[str, Any] = {field: property(operator.itemgetter(at)) for at, field in enumerate(fields)}
    return type(name, (tuple,), {"__slots__": (), "_fields": tuple(fields), **places})(values)


def _as_record(content: Any) -> Any:
    """Attributes only: NumPy asks even an instance for `__array_interface__`, which is an address in memory."""
    if any(name.startswith("__") for name in content):
        raise Malformed("a record with a name that is behaviour")
    return types.SimpleNamespace(**content)


def _as_type(name: str) -> Any:
    found = getattr(sys.modules["builtins"], name)
    if not isinstance(found, type):
        raise Malformed(f"{name} is no type")
    return found


_BUILDERS: dict[str, Any] = {
    "range": lambda c: range(*c),
    "slice": lambda c: slice(*c),
    "bytearray": bytearray,
    "plain": lambda c: c,
    "array": lambda c: array.array(c[0], c[1]),
    "deque": lambda c: collections.deque(c[0], c[1]),
    "ordered": collections.OrderedDict,
    "counter": lambda c: collections.Counter(dict(c)),
    "default": lambda c: collections.defaultdict(None, c),
    "record": _as_record,
    "keys": lambda c: dict.fromkeys(c).keys(),
    "values": lambda c: dict(enumerate(c)).values(),
    "items": lambda c: dict(c).items(),
    "datetime": lambda c: datetime.datetime.fromisoformat(c[0]).replace(fold=c[1]),
    "date": datetime.date.fromisoformat,
    "time": lambda c: datetime.time.fromisoformat(c[0]).replace(fold=c[1]),
    "timedelta": lambda c: datetime.timedelta(*c),
    "timezone": datetime.timezone,
    "decimal": decimal.Decimal,
    "fraction": lambda c: fractions.Fraction(*c),
    "uuid": lambda c: uuid.UUID(int=c),
    "path": pathlib.PurePosixPath,
    "named": _as_named,
    "type": _as_type,
    "ndarray": _as_ndarray,
    "ndlist": _as_ndlist,
}


def built(name: str, content: Any) -> Any:
    builder = _BUILDERS.get(name)
    if builder is None:
        raise Malformed(f"unknown type {name!r}")
    return builder(content)
