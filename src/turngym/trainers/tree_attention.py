"""Attention over packs: each token sees its own root path, with any decoder of transformers that has plain attention.

Three ways to say so, all of them exact:

    blocks   attention one block of rows at a time over the tokens that it can see; no work on pairs that see nothing
             of each other, whatever the pack's size. The way on a CPU.
    flex     PyTorch's FlexAttention with a block mask, which skips empty 128 × 128 tiles. The way on a GPU, where it
             has not been run yet; its mask is tested on a CPU.
    dense    the whole pack at once under a mask `(1, 1, T, T)`, for models that take a mask and nothing else.

Which of them a model can do is found out by trying (`packed_forward`): a small forest is computed packed and flat, and
the logits must agree. State-space layers keep a running state that can't fork, sliding windows and position biases
count tokens of the pack: such models fail and get the flat layout.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from turngym.agents.policies.kv import attention_kind
from turngym.trainers.packing import Pack, pack
from turngym.trainers.rows import Row, unscored_row
from turngym.types import IntArray

log = logging.getLogger(__name__)

Way = Literal["blocks", "flex", "dense"]

_NAME = "turngym_tree"
"""Under which transformers knows `_attend`."""

# What a block costs, in pairs of a query and a key: a key has to be fetched, and calls have a price of their own.
_FETCH, _CALL = 12, 4096

_PIECE = 64
"""Tokens of a row that are never cut apart: blocks of fewer cost more in calls than they save."""


# ---------------------------------------------------------------------- who sees whom


def visible(last: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """True where a token sees another one: `keys` is on the root path of `queries`.

    Args:
        last: `(T,)` of `Pack.last`.
        queries: places in the pack, of any shape that broadcasts with `keys`.
        keys: places in the pack.
    """
    return (keys <= queries) & (queries < last[keys])


def dense_mask(packed: Pack, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`(1, 1, T, T)` to add to attention scores: 0 where a token sees another, the lowest number elsewhere."""
    last = torch.from_numpy(packed.last).to(device)
    place = torch.arange(last.numel(), device=device)
    hidden = ~visible(last, place[:, None], place[None, :])
    return _additive(hidden, dtype)[None, None]


def flex_mask(packed: Pack, device: torch.device) -> Any:
    """The same as a `BlockMask` of FlexAttention."""
    from torch.nn.attention.flex_attention import create_block_mask  # noqa: PLC0415 - slow to import

    last = torch.from_numpy(packed.last).to(device)

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return visible(last, query, key)

    size = last.numel()
    return create_block_mask(sees, B=None, H=None, Q_LEN=size, KV_LEN=size, device=device)


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(
        hidden, torch.finfo(dtype).min
    )


# ---------------------------------------------------------------------- blocks


@dataclass(frozen=True, slots=True)
class Blocks:
    """Queries are the pack, cut into blocks; each block has the keys that it can see, then its own."""

    queries: list[int]
    "tokens of each block; they add up to T"
    keys: list[int]
    "keys of each block"
    index: Tensor
    "`(Σ keys,)` int64, where in the pack the keys of each block stand"
    longest: int
    "tokens of the longest row"
    masks: list[Tensor | None]
    "of each block, `(queries, keys)` to add to the scores; None where it begins a row and has no other: causal"


def blocks_of(packed: Pack, dtype: torch.dtype, device: torch.device) -> Blocks:
    """Cut a pack into blocks of neighbouring tokens, so that little is computed that is masked, in few calls."""
    pieces = _pieces(packed)
    groups = _groups(pieces)
    corner = _Corner(
        max(pieces[end - 1].end - pieces[first].begin for first, end in groups),
        max(piece.ahead for piece in pieces),
        dtype,
        device,
    )
    last = torch.from_numpy(packed.last).to(device)
    index, masks = [], []
    for first, end in groups:
        row, begin, stop = pieces[first].row, pieces[first].begin, pieces[end - 1].end
        ahead = packed.paths[row][: pieces[first].ahead]
        keys = torch.from_numpy(np.concatenate([ahead, np.arange(begin, stop)]).astype(np.int64)).to(device)
        index.append(keys)
        if pieces[end - 1].row == row:
            masks.append(corner.mask(stop - begin, ahead.size) if ahead.size else None)
        else:
            place = torch.arange(begin, stop, device=device)
            masks.append(_additive(~visible(last, place[:, None], keys[None, :]), dtype))
    return Blocks(
        queries=[pieces[end - 1].end - pieces[first].begin for first, end in groups],
        keys=[keys.numel() for keys in index],
        index=torch.cat(index),
        longest=int(packed.positions.max()) + 1,
        masks=masks,
    )


class _Corner:
    """Masks within one row: q queries behind p tokens that they all see. All are cut from one, so they take no memory."""

    def __init__(self, queries: int, ahead: int, dtype: torch.dtype, device: torch.device) -> None:
        place = torch.arange(queries, device=device)
        self._ahead = ahead
        self._mask = _additive(torch.arange(-ahead, queries, device=device) > place[:, None], dtype)

    def mask(self, queries: int, ahead: int) -> Tensor:
        """`(q, p + q)`."""
        return self._mask[:queries, self._ahead - ahead : self._ahead + queries]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Neighbouring tokens that one row adds to its pack."""

    row: int
    ahead: int
    "tokens of the row before these"
    begin: int
    "place in the pack of the first of these"
    end: int
    "one past the last"


def _pieces(packed: Pack) -> list[_Piece]:
    """What the rows add, in pieces of at most `_PIECE` tokens: a long row needs not be one block."""
    pieces = []
    for row, ((start, stop), shared) in enumerate(
        zip(pairwise(packed.starts.tolist()), packed.shared.tolist(), strict=True)
    ):
        for begin in range(start, stop, _PIECE):
            end = min(begin + _PIECE, stop)
            pieces.append(_Piece(row=row, ahead=shared + begin - start, begin=begin, end=end))
    return pieces


def _groups(pieces: Sequence[_Piece]) -> list[tuple[int, int]]:
    """First piece of each block and the one past its last: what costs least, by the model of `_FETCH` and `_CALL`.

    A piece's keys are its path; those of a block are the path of its first piece and all that the others add. Together,
    pieces fetch what they share once; but every query of a block is multiplied with every key of it.
    """
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(pieces) + 1):
        least = (float("inf"), 0)
        for first in range(end - 1, -1, -1):
            queries = pieces[end - 1].end - pieces[first].begin
            if queries * queries > least[0]:
                break  # a larger block costs more than this one
            block = (queries + _FETCH) * (pieces[first].ahead + queries) + _CALL
            least = min(least, (best[first][0] + block, first))
        best.append(least)
    groups, end = [], len(pieces)
    while end:
        first = best[end][1]
        groups.append((first, end))
        end = first
    return groups[::-1]


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree: Blocks,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers: `(1, heads, T, width)` in, `(1, T, heads, width)` out.

    Raises:
        TypeError: for a layer that wants more than plain attention.
    """
    if sliding_window is not None and sliding_window < tree.longest:
        raise TypeError(f"{type(module).__name__} sees the last {sliding_window} tokens only")
    for name in ("softcap", "s_aux", "position_bias"):
        if options.get(name) is not None:
            raise TypeError(f"{type(module).__name__} wants {name}, which is not plain attention")
    pieces = zip(
        torch.split(query, tree.queries, 2),
        torch.split(_gathered(key, tree.index), tree.keys, 2),
        torch.split(_gathered(value, tree.index), tree.keys, 2),
        tree.masks,
        strict=True,
    )
    out = [
        F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=mask is None,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        ).transpose(1, 2)
        for q, k, v, mask in pieces
    ]
    return torch.cat(out, 1), None


def _gathered(states: Tensor, index: Tensor) -> Tensor:
    """`(1, heads, K, width)` of `(1, heads, T, width)`, token by token: in memory, a token's heads are neighbours."""
    _, heads, _, width = states.shape
    tokens = states[0].transpose(0, 1).flatten(1)
    return tokens.index_select(0, index).view(-1, heads, width).transpose(0, 1)[None]


# ---------------------------------------------------------------------- the forward


@dataclass(frozen=True, slots=True)
class PackedForward:
    """Calls one model with packs."""

    way: Way

    def attention(self, model: Any) -> AbstractContextManager[None]:
        """Switch `model` to tree attention, for forward *and* backward (checkpointed layers run again there)."""
        return nullcontext() if self.way == "dense" else _implementation(model, _IMPLEMENTATIONS[self.way])

    def logits(self, model: Any, packed: Pack, sources: IntArray) -> Tensor:
        """`(U, V)` logits at places `sources` `(U,)` of a pack.

        Raises:
            RuntimeError: where `model` is not under `attention`: it would attend to what is not there.
        """
        base = unwrapped(model)
        wanted = _IMPLEMENTATIONS.get(self.way, base.config._attn_implementation)
        if base.config._attn_implementation != wanted:
            raise RuntimeError(f"call {type(base).__name__} under PackedForward.attention")
        weight = base.get_input_embeddings().weight
        device, dtype = weight.device, weight.dtype
        keep = torch.from_numpy(sources.astype(np.int64)).to(device)
        inputs: dict[str, Any] = {
            "input_ids": torch.from_numpy(packed.ids.astype(np.int64)).to(device)[None],
            "position_ids": torch.from_numpy(packed.positions.astype(np.int64)).to(device)[None],
            "use_cache": False,
        }
        match self.way:
            case "blocks":
                inputs["tree"] = blocks_of(packed, dtype, device)
            case "flex":
                inputs["attention_mask"] = flex_mask(packed, device)
            case "dense":
                inputs["attention_mask"] = dense_mask(packed, dtype, device)
        if "logits_to_keep" in inspect.signature(base.forward).parameters:
            kept: Tensor = model(**inputs, logits_to_keep=keep).logits[0]
            return kept
        everything: Tensor = model(**inputs).logits
        return everything[0, keep]


_IMPLEMENTATIONS = {"blocks": _NAME, "flex": "flex_attention"}


def packed_forward(model: Any) -> PackedForward | None:
    """The best way in which `model` computes packs as it computes rows; None, with a warning, where there is none."""
    device = next(model.parameters()).device
    ways: tuple[Way, ...] = ("blocks", "dense") if device.type == "cpu" else ("flex", "blocks", "dense")
    faults = []
    for way in ways:
        fault = fault_of(model, way)
        if fault is None:
            return PackedForward(way)
        faults.append(f"{way}: {fault}")
    log.warning(
        "%s can't share prefixes between rows (%s): they are computed in every row, which is correct and slow",
        type(unwrapped(model)).__name__,
        "; ".join(faults),
    )
    return None


def unwrapped(model: Any) -> Any:
    """The causal language model of transformers inside an adapter."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def fault_of(model: Any, way: Way) -> str | None:
    """Why `model` can't compute packs in this way, or None."""
    try:
        _only_full_attention(model)
        gap, scale = _gap(model, PackedForward(way))
    except Exception as error:  # noqa: BLE001 - whatever a model raises at foreign masks, it can't use them
        return f"{type(error).__name__}: {error}"
    tolerance = 1e-4 if unwrapped(model).get_input_embeddings().weight.dtype == torch.float32 else 0.05
    if gap <= tolerance * scale:
        return None
    return f"logits of a small forest differ by {gap:.2g} of {scale:.2g}"


def _only_full_attention(model: Any) -> None:
    config = unwrapped(model).config.get_text_config(decoder=True)
    windows = attention_kind(unwrapped(model), getattr(config, "max_position_embeddings", None)).windows
    for name, window in windows.items():
        if window is not None:
            raise TypeError(f"{name} layers see the last {window} tokens only")


def _gap(model: Any, forward: PackedForward) -> tuple[float, float]:
    """Largest difference of the logits of a small forest, packed and row by row, and the largest logit."""
    base = unwrapped(model)
    vocabulary = base.get_input_embeddings().weight.shape[0]
    device = next(model.parameters()).device
    trunk = [7919 * i % vocabulary for i in range(17)]
    branches: tuple[list[int], ...] = ([3, 1, 4], [1, 5, 9, 2, 6], [1, 5, 3, 5], [])
    rows = [_plain_row([*trunk, *(i % vocabulary for i in branch)]) for branch in branches]
    rows.append(_plain_row([(trunk[0] + 1) % vocabulary, 8 % vocabulary, 2 % vocabulary]))
    (packed,) = pack(rows, sum(row.ids.size for row in rows))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), forward.attention(model):
            seen = forward.logits(model, packed, packed.sources).float()
        with torch.no_grad():
            alone = [
                model(
                    input_ids=torch.from_numpy(row.ids.astype(np.int64)).to(device)[None], use_cache=False
                ).logits[0, :-1]
                for row in packed.rows
            ]
    finally:
        model.train(was_training)
    expected = torch.cat(alone).float()
    return float((seen - expected).abs().max()), float(expected.abs().max())


def _plain_row(ids: Sequence[int]) -> Row:
    """A row that predicts all its tokens."""
    return unscored_row(ids, range(1, len(ids)), rollout_id="probe")


@contextmanager
def _implementation(model: Any, name: str) -> Iterator[None]:
    """`model` with another attention function of transformers."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: PLC0415 - slow to import

    base = unwrapped(model)
    if not base._can_set_attn_implementation():
        raise TypeError(f"{type(base).__name__} does not take attention functions")
    ALL_ATTENTION_FUNCTIONS.register(_NAME, _attend)
    before = base.config._attn_implementation
    base.set_attn_implementation(name)
    try:
        yield
    finally:
        base.set_attn_implementation(before)
