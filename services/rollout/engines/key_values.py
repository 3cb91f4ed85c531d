"""Keys and values of the running rows, in one block that is written in place.

Invariant: row r's first `length` slots hold its own keys and values and nothing moves them but `copy_row`; every
other slot is finite (a masked slot still takes part in a product, and 0 × NaN is NaN).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_LENGTH_STEP = 64


@dataclass(frozen=True, slots=True)
class CacheShape:
    layers: int
    heads: int
    head_size: int


class KeyValueBlock:
    """data[2, layers, rows, heads, slots, head_size]: keys at 0, values at 1; grows by copying, never by a step."""

    def __init__(self, shape: CacheShape, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        self._options: dict[str, Any] = {"dtype": dtype, "device": device}
        self.data = torch.zeros(2, shape.layers, 0, shape.heads, 0, shape.head_size, **self._options)

    @property
    def rows(self) -> int:
        return self.data.shape[2]

    @property
    def slots(self) -> int:
        return self.data.shape[4]

    def ensure(self, used_rows: int, rows: int, slots: int, max_rows: int) -> None:
        """Room for `rows` rows of `slots` slots; the first `used_rows` rows keep what they hold."""
        if rows <= self.rows and slots <= self.slots:
            return
        grown_rows = self.rows
        if rows > self.rows:
            grown_rows = min(max(rows, 2 * self.rows), max(max_rows, rows))
        # Not the old length: one long sequence that has left must not make every later row long.
        grown_slots = -(-slots // _LENGTH_STEP) * _LENGTH_STEP
        old, kept = self.data, min(self.slots, grown_slots)
        self.data = torch.zeros(
            2,
            self.shape.layers,
            grown_rows,
            self.shape.heads,
            grown_slots,
            self.shape.head_size,
            **self._options,
        )
        self.data[:, :, :used_rows, :, :kept] = old[:, :, :used_rows, :, :kept]

    def copy_row(self, source: int, target: int, length: int) -> None:
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]


class PromptCache:
    """What the model calls while it reads prompts of equal length: stores, and hands back what it was given."""

    is_compileable = False

    def __init__(self, block: KeyValueBlock, first_row: int, length: int) -> None:
        self._block = block
        self._first = first_row
        self._length = length

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        rows = slice(self._first, self._first + len(keys))
        self._block.data[0, layer_idx, rows, :, : self._length] = keys
        self._block.data[1, layer_idx, rows, :, : self._length] = values
        return keys, values

    def get_seq_length(self, *_: Any) -> int:
        return 0


class StepCache:
    """What the model calls in a decode step: one new slot a row, each at its own place.

    `places` int64[b]: the slot that row r writes, which is also its number of earlier tokens.
    """

    is_compileable = False

    def __init__(self, block: KeyValueBlock, places: Tensor, span: int) -> None:
        self._data = block.data
        self._places = places
        self._rows = torch.arange(len(places), device=places.device)
        self._span = span

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        own_keys, own_values = self._data[0, layer_idx], self._data[1, layer_idx]
        own_keys[self._rows, :, self._places] = keys[:, :, 0]
        own_values[self._rows, :, self._places] = values[:, :, 0]
        rows = len(self._rows)
        return own_keys[:rows, :, : self._span], own_values[:rows, :, : self._span]

    def get_seq_length(self, *_: Any) -> int:
        return self._span - 1


class ProbeCache:
    """Learns the shape of a model's keys and values from one forward pass."""

    is_compileable = False

    def __init__(self) -> None:
        self.seen: dict[int, tuple[torch.Size, torch.Size]] = {}

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        self.seen[layer_idx] = (keys.shape, values.shape)
        return keys, values

    def get_seq_length(self, *_: Any) -> int:
        return 0

    def shape(self) -> CacheShape | None:
        """None where layers differ, or keys from values: this block cannot hold such a model."""
        shapes = {shape for pair in self.seen.values() for shape in pair}
        if len(shapes) != 1 or sorted(self.seen) != list(range(len(self.seen))):
            return None
        _, heads, _, size = next(iter(shapes))
        return CacheShape(layers=len(self.seen), heads=heads, head_size=size)
