"""How the rows of a batch become forwards: flat, or packed with every shared token computed once.

The one idea: a layout cuts rows into parts, and a part gives logits for the trained tokens of its rows, in their order,
and behind them for the observed ones.
Everything behind the logits is the same for every layout, so a loss can't tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from turngym.errors import ConfigError
from turngym.trainers.packing import Pack, pack
from turngym.trainers.rows import Row
from turngym.trainers.tree_attention import PackedForward, packed_forward

LayoutName = Literal["flat", "packed"]


class Part(Protocol):
    """The rows of one forward."""

    @property
    def rows(self) -> Sequence[Row]:
        """In the order of the logits."""

    @property
    def tokens(self) -> int:
        """That the forward computes, padding included."""

    def attention(self, model: Any) -> AbstractContextManager[None]:
        """What `model` has to be in while `logits` and the backward run."""

    def logits(self, model: Any) -> Tensor:
        """`(M + O, V)` logits in the model's type: of the trained tokens, row by row, then of the observed ones likewise."""


class Layout(Protocol):
    """Cuts rows into parts."""

    def parts(self, rows: Sequence[Row], tokens: int) -> Iterator[Part]:
        """All rows, each in one part; at most `tokens` tokens a part (one row may be longer)."""


def get_layout(name: LayoutName, model: Any, *, pad_id: int = 0) -> Layout:
    """The layout `name` for `model`; flat, with a warning, where the model can't share prefixes.

    Args:
        name: `flat` or `packed`.
        model: that will be trained; a small forest is tried on it.
        pad_id: id to pad rows with; any will do, since causal attention never looks right of a token.
    """
    match name:
        case "flat":
            return FlatLayout(pad_id)
        case "packed":
            forward = packed_forward(model)
            return FlatLayout(pad_id) if forward is None else PackedLayout(forward)
        case _:
            raise ConfigError(f"a layout is flat or packed, got {name!r}")


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """Rows of like length together, padded on the right."""

    pad_id: int = 0

    def parts(self, rows: Sequence[Row], tokens: int) -> Iterator[Part]:
        """See `Layout`; `tokens` counts padding."""
        batch: list[Row] = []
        for row in sorted(rows, key=lambda r: r.ids.size):
            if batch and (len(batch) + 1) * row.ids.size > tokens:
                yield FlatPart(batch, self.pad_id)
                batch = []
            batch.append(row)
        yield FlatPart(batch, self.pad_id)


@dataclass(frozen=True, slots=True)
class FlatPart:
    """`B` rows, padded to the longest."""

    rows: Sequence[Row]
    pad_id: int

    @property
    def tokens(self) -> int:
        """See `Part`."""
        return len(self.rows) * max(row.ids.size for row in self.rows)

    def attention(self, model: Any) -> AbstractContextManager[None]:
        """Nothing: rows are what models expect."""
        return nullcontext()

    def logits(self, model: Any) -> Tensor:
        """See `Part`."""
        device = next(model.parameters()).device
        ids = torch.nn.utils.rnn.pad_sequence(
            [torch.from_numpy(r.ids.astype(np.int64)) for r in self.rows],
            batch_first=True,
            padding_value=self.pad_id,
        ).to(device)
        lengths = torch.tensor([r.ids.size for r in self.rows], device=device)
        attention = torch.arange(ids.shape[1], device=device) < lengths[:, None]
        logits = model(input_ids=ids, attention_mask=attention.long(), use_cache=False).logits
        places = [r.targets for r in self.rows] + [r.observed for r in self.rows]
        row = np.repeat(np.tile(np.arange(len(self.rows)), 2), [p.size for p in places])
        position = np.concatenate(places) - 1
        picked: Tensor = logits[
            torch.from_numpy(row).to(device), torch.from_numpy(position).long().to(device)
        ]
        return picked


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """See `packing`."""

    forward: PackedForward

    def parts(self, rows: Sequence[Row], tokens: int) -> Iterator[Part]:
        """See `Layout`."""
        for packed in pack(rows, tokens):
            yield PackedPart(packed, self.forward)


@dataclass(frozen=True, slots=True)
class PackedPart:
    """One pack."""

    packed: Pack
    forward: PackedForward

    @property
    def rows(self) -> Sequence[Row]:
        """See `Part`."""
        return self.packed.rows

    @property
    def tokens(self) -> int:
        """See `Part`."""
        return int(self.packed.ids.size)

    def attention(self, model: Any) -> AbstractContextManager[None]:
        """See `Part`."""
        return self.forward.attention(model)

    def logits(self, model: Any) -> Tensor:
        """See `Part`. A token that predicts several has its logits computed once."""
        sources, where = np.unique(self.packed.sources, return_inverse=True)
        logits = self.forward.logits(model, self.packed, sources)
        if sources.size == where.size and bool((np.diff(where) > 0).all()):
            return logits
        return logits[torch.from_numpy(where).to(logits.device)]
