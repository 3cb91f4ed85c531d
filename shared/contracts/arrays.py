"""Number arrays on the wire.

Invariant: an array travels as base64 of its little-endian bytes beside its dtype and is decoded with one
`numpy.frombuffer`; no Python loop touches an element, in either direction.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

WireArray = dict[str, str]


def encode_array(array: NDArray[Any]) -> WireArray:
    """One-dimensional array → `{"dtype": "<i4", "data": base64}`."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return {
        "dtype": little.dtype.str.replace("=", "<"),
        "data": base64.b64encode(little.tobytes()).decode("ascii"),
    }


def decode_array(value: WireArray, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The read-only array of `value`.

    Raises `ValueError` when the dtype is another one than the field declares, or when the bytes are no
    whole number of elements.
    """
    wire = np.dtype(value["dtype"])
    if wire.newbyteorder("<") != dtype.newbyteorder("<"):
        raise ValueError(f"array dtype is {value['dtype']!r}, the contract says {dtype.str!r}")
    try:
        raw = base64.b64decode(value["data"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"array data is not base64: {error}") from error
    return np.frombuffer(raw, dtype=wire)


class WireDtype:
    """Pydantic annotation: a one-dimensional NumPy array of a fixed dtype, base64 in JSON.

    In Python it accepts any sequence or array that converts without loss of kind (ints to ints, numbers
    to floats); arrays are made read-only, so a message is immutable to the last element.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)

    def _validate(self, value: Any) -> NDArray[Any]:
        if isinstance(value, dict) and set(value) >= {"dtype", "data"}:
            return decode_array(value, self.dtype)
        array = np.asarray(value)
        if array.size and array.dtype.kind not in ("bui" if self.dtype.kind in "ui" else "buif"):
            raise ValueError(f"cannot read {array.dtype} as {self.dtype}")
        if array.ndim != 1:
            raise ValueError(f"array has {array.ndim} dimensions, the contract says 1")
        if self.dtype.kind in "ui" and array.size:
            limits = np.iinfo(self.dtype)
            if int(array.min()) < limits.min or int(array.max()) > limits.max:
                raise ValueError(f"array value outside {self.dtype}: {array.min()} to {array.max()}")
        converted = np.array(array, dtype=self.dtype)
        converted.setflags(write=False)
        return converted

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(encode_array, when_used="json"),
        )


Int32Array = Annotated[NDArray[np.int32], WireDtype("<i4")]
Float32Array = Annotated[NDArray[np.float32], WireDtype("<f4")]
MaskArray = Annotated[NDArray[np.uint8], WireDtype("|u1")]
