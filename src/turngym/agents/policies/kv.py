"""Keys and values of many sequences at once: one slot per sequence, each with a length of its own.

`SlotCache` is a transformers `Cache`. Before a forward the engine says which slots the rows of the batch are, at
which positions the new tokens stand and how far the longest row reaches; `update` writes there and gives back the
slots' keys and values up to that reach. What a row must not see is masked (`causal_mask`), so nothing is moved when
sequences of different lengths share a batch, and a turn costs its own tokens only.

The last position of every slot is a bin for padding. It is never attended to.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

Mask = Tensor | dict[str, Tensor]


class SlotCache(Cache):  # type: ignore[misc] # transformers is untyped
    """Storage for `slots` sequences of up to `length` tokens.

    Layers are allocated when the model first writes to them, so their number of heads, widths and types are the
    model's own. Tensors are `(slots, heads, length + 1, width)`.
    """

    def __init__(self, slots: int, length: int) -> None:
        super().__init__(layers=[])
        self.slots = slots
        self.length = length
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def aim(self, rows: slice | Tensor, slots: Tensor, positions: Tensor, reach: int) -> None:
        """Set where the next forward reads and writes.

        Args:
            rows: the slots of the batch, as a slice (read without copying) or an index `(B,)`.
            slots: `(B,)` the same as numbers.
            positions: `(B, T)` where the new tokens stand; `length` for padding.
            reach: positions 0 … reach − 1 are read.
        """
        self._rows, self._slots, self._positions, self._reach = rows, slots, positions, reach
        self._targets: dict[int, Tensor] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write `(B, H, T, D)` and return `(B, H, reach, D)`. Called by every attention layer."""
        if layer_idx not in self._keys:
            self._keys[layer_idx] = self._allocate(key_states)
            self._values[layer_idx] = self._allocate(value_states)
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        target = self._target(keys.shape[1])
        keys.view(-1, keys.shape[-1]).index_copy_(0, target, key_states.reshape(-1, keys.shape[-1]))
        values.view(-1, values.shape[-1]).index_copy_(0, target, value_states.reshape(-1, values.shape[-1]))
        return self._read(keys), self._read(values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: positions and masks are always passed to the model, never derived from here."""
        return 0

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for tensor in self._tensors():
            tensor[target, :, :length] = tensor[source, :, :length]

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange the first `length` positions of two slots."""
        for tensor in self._tensors():
            tensor[[a, b], :, :length] = tensor[[b, a], :, :length]

    def rebuilt(self, keep: Sequence[int], lengths: Sequence[int], *, slots: int, length: int) -> SlotCache:
        """A cache of another size in which slot i holds what `keep[i]` held. This one is emptied layer by layer."""
        other = SlotCache(slots, length)
        for mine, theirs in ((self._keys, other._keys), (self._values, other._values)):
            for layer in list(mine):
                old = mine.pop(layer)
                new = theirs[layer] = old.new_zeros((slots, old.shape[1], length + 1, old.shape[-1]))
                for slot, (source, used) in enumerate(zip(keep, lengths, strict=True)):
                    new[slot, :, :used] = old[source, :, :used]
        return other

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one sequence takes over all layers written so far."""
        return sum(t.shape[1] * t.shape[-1] * t.element_size() for t in self._tensors())

    def _tensors(self) -> list[Tensor]:
        return [*self._keys.values(), *self._values.values()]

    def _allocate(self, states: Tensor) -> Tensor:
        # Zeros, since a masked position is still multiplied, by 0, and garbage may be NaN.
        return states.new_zeros((self.slots, states.shape[1], self.length + 1, states.shape[-1]))

    def _target(self, heads: int) -> Tensor:
        """`(B · H · T,)` row numbers of the new tokens in a tensor that is seen as `(slots · heads · length, width)`."""
        if heads not in self._targets:
            lanes = self._slots[:, None] * heads + torch.arange(heads, device=self._slots.device)
            self._targets[heads] = (
                lanes[:, :, None] * (self.length + 1) + self._positions[:, None, :]
            ).reshape(-1)
        return self._targets[heads]

    def _read(self, tensor: Tensor) -> Tensor:
        if isinstance(self._rows, slice):
            return tensor[self._rows, :, : self._reach]
        return tensor[:, :, : self._reach].index_select(0, self._rows)


def causal_mask(positions: Tensor, reach: int, dtype: torch.dtype, window: int | None = None) -> Tensor:
    """`(B, 1, T, reach)` to add to attention scores: 0 where a token may look, the lowest number elsewhere.

    Args:
        positions: `(B, T)` of the tokens that look.
        reach: number of positions that they may look at.
        dtype: of the model.
        window: for layers with sliding-window attention, how many positions back a token sees, itself included.
    """
    keys = torch.arange(reach, device=positions.device)
    queries = positions[:, None, :, None]
    hidden = keys > queries
    if window is not None:
        hidden |= keys <= queries - window
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(
        hidden, torch.finfo(dtype).min
    )


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """Which masks a model's layers want."""

    windows: Mapping[str, int | None]
    "sliding window (None: full attention) by the name that the model's config gives to such layers"

    def mask(self, positions: Tensor, reach: int, dtype: torch.dtype) -> Mask:
        """The mask, or one by kind of layer where a model mixes kinds."""
        masks = {name: causal_mask(positions, reach, dtype, window) for name, window in self.windows.items()}
        return masks if len(masks) > 1 else next(iter(masks.values()))


def attention_kind(model: Any, window: int | None) -> AttentionKind:
    """What kind of attention `model` has, by the layers of the `DynamicCache` that transformers would use for it.

    Args:
        model: a causal language model of transformers, with or without an adapter.
        window: longest context that will be asked for; sliding windows that are not shorter don't matter.

    Raises:
        TypeError: where a layer keeps another state than keys and values.
    """
    config = model.config.get_text_config(decoder=True)
    names = getattr(config, "layer_types", None) or []
    windows: dict[str, int | None] = {}
    for index, layer in enumerate(DynamicCache(config=config).layers):
        name = names[index] if index < len(names) else type(layer).__name__
        if type(layer) is DynamicLayer:
            windows[name] = None
        elif (
            type(layer) is DynamicSlidingWindowLayer and "chunk" not in name
        ):  # chunked attention masks otherwise
            reached = window is None or layer.sliding_window < window
            windows[name] = int(layer.sliding_window) if reached else None
        else:
            raise TypeError(f"layer {index} ({name}) keeps another state than keys and values")
    if len(set(windows.values())) == 1:
        windows = dict(list(windows.items())[:1])
    return AttentionKind(windows)


class Forward:
    """Calls a model: in eval mode, without gradients, with the names of arguments that its version knows."""

    def __init__(self, model: Any) -> None:
        self.model = model
        inner = model.get_base_model() if hasattr(model, "peft_config") else model
        known = inspect.signature(inner.forward).parameters
        self._cache = "cache" if "cache" in known else "past_key_values"
        self._keeps = "logits_to_keep" in known
        self.dtype: torch.dtype = inner.get_input_embeddings().weight.dtype
        self.device: torch.device = inner.get_input_embeddings().weight.device

    def cached(self, ids: Tensor, mask: Mask, positions: Tensor, cache: SlotCache) -> Tensor:
        """`(B, V)` logits at the last of `(B, T)` tokens, with the state before them in `cache`."""
        extra: dict[str, Any] = {self._cache: cache, "use_cache": True}
        return self._run(1, input_ids=ids, attention_mask=mask, position_ids=positions, **extra)[:, -1]

    def plain(self, rows: Sequence[npt.NDArray[np.int32]]) -> Tensor:
        """`(B, V)` logits behind the last token of each row, everything computed anew."""
        lengths = [row.size for row in rows]
        ids = torch.zeros((len(rows), max(lengths)), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : row.size] = torch.from_numpy(row.astype(np.int64))
            mask[i, : row.size] = 1
        ends, where = np.unique(lengths, return_inverse=True)
        keep = torch.from_numpy(ends - 1).to(self.device)
        logits = self._run(
            keep, input_ids=ids.to(self.device), attention_mask=mask.to(self.device), use_cache=False
        )
        return logits[torch.arange(len(rows)), torch.from_numpy(where)]

    def _run(self, keep: int | Tensor, **inputs: Any) -> Tensor:
        """Logits at the kept positions: the last `keep`, or those at an index."""
        training = [m for m in self.model.modules() if m.training] if self.model.training else []
        for module in training:
            module.training = False
        try:
            with torch.inference_mode():
                if self._keeps:
                    logits: Tensor = self.model(**inputs, logits_to_keep=keep).logits
                    return logits
                logits = self.model(**inputs).logits
                return logits[:, -keep:] if isinstance(keep, int) else logits[:, keep]
        finally:
            for module in training:
                module.training = True
