"""A key-value cache whose rows can be forked and dropped in place, copied out and put back in.

transformers' DynamicCache copies all keys and values at every step (torch.cat) and whenever a row leaves. Here a step
writes one slot, and forking or dropping copies only the rows that move. Outside the cache, the keys and values of n
slots of one row are one tensor (n, F) with all layers side by side, so layers may differ in their numbers of heads.
"""

# R rows, A entering rows, H key-value heads, L length (slots in use), D head size, F sum of H * D over layers

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

SPARE = 64


def room_for(room: tuple[int, int], rows: int, length: int) -> tuple[int, int]:
    """(rows, slots) of a buffer that had `room` and must hold so many: what grows gets spare room."""
    room_rows, room_length = room
    if rows > room_rows:
        room_rows = max(rows, room_rows * 3 // 2)
    if length > room_length:
        room_length = length + max(SPARE, length // 8)
    return room_rows, room_length


class ForkingLayer(DynamicLayer):
    """Keys and values of one layer: views (R, H, L, D) of buffers with spare rows and slots."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        rows, heads = key_states.shape[:2]
        self.keys = self._key_room = key_states.new_empty(rows, heads, 0, key_states.shape[-1])
        self.values = self._value_room = value_states.new_empty(rows, heads, 0, value_states.shape[-1])

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Appends the new states; returns all keys and values as views."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, _, length, _ = self.keys.shape
        end = length + key_states.shape[2]
        self._resize(rows, end)
        self.keys[:, :, length:] = key_states
        self.values[:, :, length:] = value_states
        return self.keys, self.values

    def move_rows(self, rows: int, targets: Tensor, sources: Tensor) -> None:
        """Resizes to `rows` rows; row targets[i] becomes a copy of the old row sources[i], the others stay."""
        if len(targets):
            old_keys = self.keys.index_select(0, sources)
            old_values = self.values.index_select(0, sources)
        self._resize(rows, self.keys.shape[2])
        if len(targets):
            self.keys.index_copy_(0, targets, old_keys)
            self.values.index_copy_(0, targets, old_values)

    def enter(self, key_states: Tensor, value_states: Tensor, length: int) -> None:
        """Appends rows (A, H, N, D), N <= length; afterwards all rows have `length` slots and end in the same one.

        Longer rows are cut on the left and shorter ones are padded there with 0, since masked slots must be finite.
        """
        self.keys, self._key_room = _appended(self.keys, key_states, length)
        self.values, self._value_room = _appended(self.values, value_states, length)

    def batch_select_indices(self, indices: Tensor) -> None:
        raise NotImplementedError("use ForkingCache.move_rows: it moves rows inside the buffers")

    batch_repeat_interleave = reorder_cache = batch_select_indices

    def _resize(self, rows: int, length: int) -> None:
        """Points the views at the first rows and slots, after enlarging the buffers if necessary."""
        room_rows, _, room_length, _ = self._key_room.shape
        if rows > room_rows or length > room_length:
            room = room_for((room_rows, room_length), rows, length)
            self._key_room = _larger(self._key_room, self.keys, *room)
            self._value_room = _larger(self._value_room, self.values, *room)
        self.keys = self._key_room[:rows, :, :length]
        self.values = self._value_room[:rows, :, :length]


class ForkingCache(Cache):
    """One `ForkingLayer` per layer; pass it to a model as its cache."""

    def __init__(self):
        super().__init__(layer_class_to_replicate=ForkingLayer)

    def move_rows(self, rows: int, targets: Tensor, sources: Tensor) -> None:
        """Resizes to `rows` rows; row targets[i] becomes a copy of the old row sources[i], the others stay.

        >>> cache = ForkingCache()
        >>> keys, _ = cache.update(torch.tensor([1.0, 2.0]).view(2, 1, 1, 1), torch.zeros(2, 1, 1, 1), layer_idx=0)
        >>> cache.move_rows(3, torch.tensor([0, 2]), torch.tensor([1, 0]))
        >>> cache.layers[0].keys.flatten().tolist()
        [2.0, 2.0, 1.0]
        """
        for layer in self.layers:
            layer.move_rows(rows, targets, sources)

    def take(self, row: int, begin: int, end: int) -> Tensor:
        """A copy of slots [begin, end) of a row, (end - begin, F)."""
        states = [states[row, :, begin:end] for layer in self.layers for states in (layer.keys, layer.values)]
        return torch.cat([states.transpose(0, 1).flatten(1) for states in states], dim=1)

    def enter_rows(self, states: list[Tensor], length: int) -> None:
        """Appends one row for each of the states (n, F), n <= length; see `ForkingLayer.enter`."""
        for layer, (keys, values) in zip(self.layers, self._by_layer(states), strict=True):
            layer.enter(keys, values, length)

    def with_rows(self, states: list[Tensor]) -> ForkingCache:
        """Another cache of the same layers with only these rows, all ending in the same slot."""
        cache = ForkingCache()
        for index, (keys, values) in enumerate(self._by_layer(states)):
            cache.update(keys, values, index)
        return cache

    def _by_layer(self, states: list[Tensor]) -> Iterator[list[Tensor]]:
        """Keys and values (A, H, N, D) of each layer, padded with 0 on the left."""
        longest, begin = max(map(len, states)), 0
        padded = torch.stack([F.pad(row, (0, 0, longest - len(row), 0)) for row in states])
        for layer in self.layers:
            pair = []
            for like in (layer.keys, layer.values):
                sizes = like.shape[1], like.shape[3]
                end = begin + sizes[0] * sizes[1]
                pair.append(padded[..., begin:end].unflatten(-1, sizes).transpose(1, 2))
                begin = end
            yield pair


def _appended(old: Tensor, new: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """(view, buffer) of old rows (R, H, L, D) and new rows (A, H, N, D), right-aligned in `length` slots."""
    rows = len(old) + len(new)
    room = new.new_zeros(rows, new.shape[1], length + SPARE, new.shape[3])
    for at, states in ((slice(len(old)), old), (slice(len(old), rows), new)):
        kept = states[:, :, max(states.shape[2] - length, 0) :]
        room[at, :, length - kept.shape[2] : length] = kept
    return room[:, :, :length], room


def _larger(room: Tensor, used: Tensor, rows: int, length: int) -> Tensor:
    larger = room.new_empty(rows, room.shape[1], length, room.shape[3])
    larger[: used.shape[0], :, : used.shape[2]] = used
    return larger
