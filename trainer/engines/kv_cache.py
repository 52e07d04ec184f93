"""A key-value cache whose rows can be forked and dropped in place, copied out and put back in.

transformers' DynamicCache copies all keys and values at every step (torch.cat) and whenever a row leaves. Here a step
writes one slot, and forking or dropping copies only the rows that move. Outside the cache, the keys and values of n
slots of one row are one tensor (n, F) with all layers side by side, so layers may differ in their numbers of heads.

A layer with a recurrent or convolution state keeps the state after a row's last slot and nothing of the slots before.
Outside the cache, the state of a row is one tensor (S,), and it belongs to the number of slots it was taken at.
"""

# R rows, A entering rows, H key-value heads, L length (slots in use), D head size, F sum of H * D over layers
# S numbers of a row's state over all layers that have one

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, LinearAttentionLayer

SPARE = 64
RECURRENT = {"linear_attention", "conv"}  # kinds of layers, as configs name them


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

    def release(self) -> None:
        """Drops all rows and frees their buffers; rows can enter again."""
        self.keys = self._key_room = self.keys[:0, :, :0].clone()
        self.values = self._value_room = self.values[:0, :, :0].clone()

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


class StateLayer(LinearAttentionLayer):
    """The convolution and recurrent states of one layer, (R, ...) each, whatever number of slots they have seen."""

    def states(self) -> list[Tensor]:
        """Those that the layer uses: a convolution layer has no recurrent state."""
        return [
            held for kind in (self.conv_states, self.recurrent_states) for held in kind.values() if held is not None
        ]

    def move_rows(self, rows: int, targets: Tensor, sources: Tensor) -> None:
        """See `ForkingLayer.move_rows`."""
        for kind in (self.conv_states, self.recurrent_states):
            for place, old in kind.items():
                if old is None:
                    continue
                kind[place] = torch.cat([old[:rows], old.new_empty(max(rows - len(old), 0), *old.shape[1:])])
                kind[place].index_copy_(0, targets, old.index_select(0, sources))

    def enter(self, states: list[Tensor]) -> None:
        """Appends rows: for each of `states()` those (A, ...) of the new rows."""
        for kind in (self.conv_states, self.recurrent_states):
            for place, old in kind.items():
                if old is not None:
                    kind[place] = torch.cat([old, states.pop(0)])

    def with_states(self, states: list[Tensor]) -> StateLayer:
        """Another layer of the same kind in these states."""
        layer = StateLayer(self.number_of_states)
        for name in ("conv", "recurrent"):
            for place, old in getattr(self, f"{name}_states").items():
                if old is not None:
                    getattr(layer, f"{name}_states")[place] = states.pop(0)
                    getattr(layer, f"is_{name}_states_initialized")[place] = True
                    layer.device, layer.dtype = old.device, old.dtype
        layer.has_previous_state = dict(self.has_previous_state)
        layer.conv_kernel_size = dict(self.conv_kernel_size)
        return layer


class ForkingCache(Cache):
    """One `ForkingLayer` or `StateLayer` per layer; pass it to a model as its cache.

    Args:
        kinds: the kind of each layer, as a config's layer_types; () if all layers have keys and values.
    """

    def __init__(self, kinds: Sequence[str] = ()):
        if RECURRENT.isdisjoint(kinds):
            super().__init__(layer_class_to_replicate=ForkingLayer)
        else:
            super().__init__(layers=[StateLayer() if kind in RECURRENT else ForkingLayer() for kind in kinds])

    @property
    def attention(self) -> list[ForkingLayer]:
        return [layer for layer in self.layers if isinstance(layer, ForkingLayer)]

    @property
    def recurrent(self) -> list[StateLayer]:
        return [layer for layer in self.layers if isinstance(layer, StateLayer)]

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
        states = [states[row, :, begin:end] for layer in self.attention for states in (layer.keys, layer.values)]
        return torch.cat([states.transpose(0, 1).flatten(1) for states in states], dim=1)

    def state(self, row: int) -> Tensor | None:
        """A copy of the state (S,) after a row's last slot; None if no layer has one."""
        states = [held[row].flatten().float() for layer in self.recurrent for held in layer.states()]
        return torch.cat(states) if states else None

    def enter_rows(self, states: list[Tensor], length: int, recurrent: Sequence[Tensor | None] = ()) -> None:
        """Appends one row for each of the states (n, F), n <= length, and the state (S,) at its end if layers have one.

        See `ForkingLayer.enter`.
        """
        for layer, (keys, values) in zip(self.attention, self._by_layer(states), strict=True):
            layer.enter(keys, values, length)
        for layer, found in zip(self.recurrent, self._by_state(recurrent), strict=True):
            layer.enter(found)

    def release(self) -> None:
        """Drops all slots and frees the buffers of a cache without rows; rows can enter again."""
        for layer in self.attention:
            layer.release()

    def with_rows(self, states: list[Tensor], recurrent: Sequence[Tensor | None] = ()) -> ForkingCache:
        """Another cache of the same layers with only these rows, all ending in the same slot.

        A row without keys and values begins in no state, whatever `recurrent` says.
        """
        cache = ForkingCache()
        cache.layer_class_to_replicate = None
        begun = bool(self.recurrent) and len(states[0]) > 0
        found = iter(self._by_state(recurrent) if begun else ())
        for layer in self.layers:
            fresh = ForkingLayer() if isinstance(layer, ForkingLayer) else StateLayer()
            goes_on = begun and isinstance(layer, StateLayer)
            cache.layers.append(layer.with_states(next(found)) if goes_on else fresh)
        for layer, (keys, values) in zip(cache.attention, self._by_layer(states), strict=True):
            layer.update(keys, values)
        return cache

    def _by_state(self, rows: Sequence[Tensor | None]) -> list[list[Tensor]]:
        """For each layer with states the states (A, ...) of the rows."""
        if not self.recurrent:
            return []
        flat, begin, found = torch.stack(list(rows)), 0, []
        for layer in self.recurrent:
            found.append([])
            for held in layer.states():
                end = begin + held.shape[1:].numel()
                found[-1].append(flat[:, begin:end].reshape(-1, *held.shape[1:]).to(held.dtype))
                begin = end
        return found

    def _by_layer(self, states: list[Tensor]) -> Iterator[list[Tensor]]:
        """Keys and values (A, H, N, D) of each layer, padded with 0 on the left."""
        longest, begin = max(map(len, states)), 0
        padded = torch.stack([F.pad(row, (0, 0, longest - len(row), 0)) for row in states])
        for layer in self.attention:
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
