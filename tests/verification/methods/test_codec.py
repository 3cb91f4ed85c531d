"""Plain data crosses exactly, and whatever bytes come in, nothing but plain data comes out."""

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import datetime
import decimal
import fractions
import math
import types
import uuid
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.verification.guest.codec import MAX_BYTES, Decoder, Encoder, TooLarge
from shared.verification.guest.kinds import Foreign, Malformed

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**3000), 2**3000) | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False) | st.text(st.characters(codec=None, categories=None)) | st.binary()
)  # fmt: skip
HASHABLE = st.recursive(
    SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=4), max_leaves=8
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=12) | st.tuples(inner) | st.dictionaries(HASHABLE, inner, max_size=6) | st.sets(HASHABLE, max_size=6)
    ),
    max_leaves=30,
)  # fmt: skip


def there_and_back(value: Any) -> Any:
    return Decoder().decode(Encoder().encode(value))


def kinds(value: Any) -> Any:
    """The types of a value and of its parts, in order."""
    if isinstance(value, list | tuple):
        return type(value), [kinds(item) for item in value]
    if isinstance(value, dict):
        return type(value), [(kinds(key), kinds(item)) for key, item in value.items()]
    return type(value)


@given(VALUES)
def test_plain_data_is_the_same_afterwards(value: Any) -> None:
    found = there_and_back(value)
    assert found == value
    assert kinds(found) == kinds(value)


@given(
    st.lists(st.integers() | st.text() | st.floats(allow_nan=False) | st.booleans() | st.none(), min_size=8)
)
def test_long_lists_of_scalars_take_the_short_way_and_are_the_same(value: list[Any]) -> None:
    assert kinds(there_and_back(value)) == kinds(value)
    assert there_and_back(value) == value == list(there_and_back(tuple(value)))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_plain_value_or_malformed(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        Decoder().decode(data)


@given(VALUES, st.data())
def test_a_damaged_value_is_another_value_or_malformed(value: Any, data: st.DataObject) -> None:
    raw = bytearray(Encoder().encode(value))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Malformed):
        Decoder().decode(bytes(raw))


@pytest.mark.parametrize(
    "value",
    [
        -0.0, math.inf, -math.inf, 10**5000, [10**5000] * 9, "\ud800", ["\ud83d", "\ude00"] * 8, "\0", b"\xff", range(3, 9, 2),
        slice(1, None), ..., datetime.date(2024, 2, 29), datetime.time(1, 2, 3, 4), datetime.timedelta(-1, 5, 7),
        datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2024, 1, 1, fold=1),
        decimal.Decimal("1.20"), fractions.Fraction(-1, 3), uuid.UUID(int=5), collections.deque([1, 2], 3),
        collections.OrderedDict(a=1), collections.Counter("aab"), array.array("d", [1.5]), bytearray(b"x"), {1: 2}.keys(),
        {1: 2}.items(), int, types.SimpleNamespace(x=1), [[]], ((),),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_standard_types_by_value(value: Any) -> None:
    found = there_and_back(value)
    assert found == value and type(found) is type(value)
    assert not isinstance(value, float) or math.copysign(1, found) == math.copysign(1, value)


def test_nan_stays_nan() -> None:
    assert math.isnan(there_and_back(math.nan))
    assert math.isnan(there_and_back([math.nan] * 9)[3])
    assert math.isnan(there_and_back(decimal.Decimal("NaN")))


def test_cycles_and_shared_parts_survive() -> None:
    loop: list[Any] = [1]
    loop.append({"self": loop})
    found = there_and_back(loop)
    assert found[1]["self"] is found
    row = [0]
    grid = there_and_back([row, row])
    assert grid[0] is grid[1]


def test_depth_costs_no_stack() -> None:
    deep: Any = ()
    for _ in range(100_000):
        deep = (deep,)
    found = there_and_back(deep)
    for _ in range(100_000):
        (found,) = found
    assert found == ()


def test_numpy_arrays_and_scalars() -> None:
    for made in (numpy.arange(6).reshape(2, 3), numpy.float32([1, 2]), numpy.zeros((0, 3)), numpy.array(3),
                 numpy.array([[True]]), numpy.array(["a", "bc"]), numpy.array([1, "a", None], dtype=object),
                 numpy.longdouble([1.5]), numpy.array([1 + 2j]), numpy.arange(4)[::-1]):  # fmt: skip
        found = there_and_back(made)
        assert found.shape == made.shape and bool((found == made).all())
    assert [type(there_and_back(x)) for x in (numpy.int64(3), numpy.float64(2), numpy.bool_(True), numpy.str_("x"))] == [
        int, float, bool, str,
    ]  # fmt: skip


def test_a_subclass_travels_as_its_plain_data_without_asking_it() -> None:
    class Liar(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

        def __index__(self) -> int:
            raise AssertionError("asked")

        def __add__(self, other: object) -> Any:
            raise AssertionError("asked")

    class Items(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("asked")

        def __len__(self) -> int:
            raise AssertionError("asked")

    for value, plain in ((Liar(3), 3), (Items([1, [2]]), [1, [2]])):
        found = there_and_back(value)
        assert type(found) is type(plain) and found == plain
    assert there_and_back(Liar(3)) != 4


def test_a_named_tuple_keeps_its_names_and_gains_nothing() -> None:
    point = collections.namedtuple("point", "x y")
    found = there_and_back(point(1, 2))
    assert found == (1, 2) and (found.x, found.y) == (1, 2)
    raw = Encoder().encode(point(1, 2)).replace(b"s\x01x", b"s\x01_")
    with pytest.raises(Malformed):
        Decoder().decode(raw)


def test_a_data_class_is_its_attributes_and_no_behaviour() -> None:
    @dataclasses.dataclass
    class Point:
        x: int
        y: list[int]

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    found = there_and_back(Point(1, [2]))
    assert type(found) is types.SimpleNamespace and (found.x, found.y) == (1, [2]) and found != 3


def test_a_record_with_an_address_in_memory_is_malformed() -> None:
    """NumPy would follow it, wherever a test says `numpy.array(result)`."""
    interface = {"data": (140737488355328, False), "shape": (1,), "typestr": "<i8", "version": 3}
    raw = Encoder().encode(types.SimpleNamespace(**{"xx_array_interface": interface}))
    Decoder().decode(raw)
    with pytest.raises(Malformed):
        Decoder().decode(raw.replace(b"xx_array_interface", b"__array_interface"))
    assert (
        there_and_back(types.SimpleNamespace(**{"__array_interface__": interface})) == types.SimpleNamespace()
    )


def test_a_class_of_its_own_is_refused() -> None:
    class Own:
        pass

    for value in (Own(), [1, Own()], {"a": (Own(),)}, ValueError("x"), Own):
        with pytest.raises(Foreign):
            Encoder().encode(value)


def test_changes_come_back_into_our_own_containers() -> None:
    ours = [3, 1, [2]]
    going = Encoder()
    raw = going.encode(((ours,), {}))
    there = Decoder()
    (theirs,), _ = there.decode(raw)
    theirs.append("new")
    theirs[2].append(9)
    known = {id(value): number for number, value in enumerate(there.memo) if isinstance(value, list)}
    back = Encoder(known=known).encode((theirs, ((theirs,), {})))
    result, _ = Decoder(originals=going.objects).decode(back)
    assert result is ours and ours == [3, 1, [2, 9], "new"]


def test_a_change_of_what_was_never_sent_is_malformed() -> None:
    with pytest.raises(Malformed):
        Decoder(originals=[[1]]).decode(b"P\x05l\x00")
    with pytest.raises(Malformed):
        Decoder(originals=[[1]]).decode(b"P\x00m\x00")


def test_too_large_is_said_and_not_sent() -> None:
    with pytest.raises(TooLarge):
        Encoder().encode(
            [b"x" * (1 << 20)] * 1 + [bytes([n % 256]) * (1 << 20) for n in range(MAX_BYTES >> 20)]
        )


@pytest.mark.parametrize(
    "raw",
    [b"l\xff\xff\xff\xff\x7f", b"i\xff\xff\xff\x7f", b"x\x04evil" + b"N", b"r\x05", b"h\x00\x08function", b"", b"NN", b"s\xff\xff\x03a",
     b"j\x04{\"a\"", b"S\x01l\x00", b"\xff"],
)  # fmt: skip
def test_hostile_bytes_are_malformed(raw: bytes) -> None:
    with pytest.raises(Malformed):
        Decoder().decode(raw)
