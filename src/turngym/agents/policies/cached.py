"""The cached backend: every conversation keeps its keys and values in a slot between turns.

A request takes the free slot whose content is the longest prefix of its context, by token ids, and computes only
what is new. Where a longer prefix lies in a slot that must survive (a fork, the other members of a group), the prefix
is copied, which costs a thousandth of computing it. Requests of one group that arrive together compute their
shared prompt once. Free slots are given up in order of least recent use when memory is short.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from turngym.agents.policies.engine import Row, Stats
from turngym.agents.policies.kv import AttentionKind, Forward, SlotCache
from turngym.agents.policies.slots import Slots, SlotTable

log = logging.getLogger(__name__)

_FIRST_SLOTS, _FIRST_LENGTH, _LENGTH_STEP = 8, 256, 64
# A prefix in another slot is worth a copy, or a wait for its computation, from this many tokens on.
_SHARE = 32
# Tokens of one prefill forward, padding included, and the longest piece of one row in it.
_PREFILL_TOKENS, _PREFILL_PIECE = 4096, 1024
# A decode reads a contiguous range of slots; idle ones in it may be this share of the live ones.
_IDLE_SHARE = 0.5


class CachedBackend:
    """Implements `engine.Backend` over a `SlotCache`.

    Args:
        forward: the model.
        kind: its attention.
        max_slots: conversations that are kept at once, and rows that can be live at once.
        max_tokens: tokens over all slots, padding included.
        stats: counts what is computed, found, copied and evicted.
    """

    def __init__(
        self, forward: Forward, kind: AttentionKind, *, max_slots: int, max_tokens: int, stats: Stats
    ) -> None:
        self._forward, self._kind, self._stats = forward, kind, stats
        self._max_slots, self._max_tokens = max_slots, max_tokens
        self.reset()

    # ------------------------------------------------------------------ the contract

    def reset(self) -> None:
        """Forget every slot and free the memory."""
        self._table = SlotTable(0, 0)
        self._cache = SlotCache(0, 0)
        self._rows: dict[int, Row] = {}

    def admit(self, rows: Sequence[Row]) -> list[Row]:
        """Place rows in their order until one does not fit, and prefill all but their newest token.

        Rows that share a prompt with one that is being prefilled wait for it and then copy.
        """
        admitted: list[Row] = []
        pending = list(rows)
        while pending:
            wave: list[Row] = []
            later: list[Row] = []
            for row in pending:
                if self._table.planned_gain(row.context) > _SHARE:
                    later.append(row)
                elif self._place(row):
                    wave.append(row)
                else:
                    break
            if not wave:
                break
            self._prefill(wave)
            admitted += wave
            pending = later if len(wave) + len(later) == len(pending) else []
        return admitted

    def logits(self, rows: Sequence[Row]) -> Tensor:
        """`(B, V)` behind the newest token of each row, which joins its slot."""
        self._compact()
        slots = np.array([row.slot for row in rows])
        newest = np.array([row.newest for row in rows], np.int32)
        first, last = int(slots.min()), int(slots.max()) + 1
        at = slots - first
        lengths = self._table.length[slots]
        ids = np.zeros((last - first, 1), np.int64)
        positions = np.zeros_like(ids)
        targets = np.full_like(ids, self._cache.length)
        ids[at, 0], positions[at, 0], targets[at, 0] = newest, lengths, lengths
        reach = int(lengths.max()) + 1
        logits = self._run(slice(first, last), np.arange(first, last), ids, positions, targets, reach)
        self._table.append(slots, newest)
        if len(rows) == last - first and bool((at[1:] > at[:-1]).all()):
            return logits
        return logits[torch.from_numpy(at).to(logits.device)]

    def release(self, row: Row) -> None:
        """Free the row's slot; its content stays until the slot is needed."""
        self._table.free(row.slot)
        del self._rows[row.slot]
        row.slot = -1

    # ------------------------------------------------------------------ placing

    def _place(self, row: Row) -> bool:
        """Give `row` a slot with as much of its context as any slot holds. False where there is no room now."""
        if not self._reserve(row.room - 1):
            return False
        table, context = self._table, row.context
        shared = table.shared(context)
        source = int(shared.argmax())
        slot = table.extendable(shared)
        if slot is not None and shared[slot] + _SHARE >= shared[source]:
            reuse = int(shared[slot])
            self._stats.reused += reuse
        else:
            reuse = int(shared[source]) if shared[source] >= _SHARE else 0
            slot = table.victim(avoid=source if reuse else None)
            if reuse and slot == source:  # the last free slot: cut back to what is shared
                self._stats.reused += reuse
            else:
                self._stats.evicted += bool(table.length[slot])
                self._stats.copied += reuse
                if reuse:
                    self._cache.copy(source, slot, reuse)
        table.take(slot, context, reuse)
        self._rows[slot] = row
        row.slot = slot
        return True

    def _reserve(self, tokens: int) -> bool:
        """Make sure that a slot is free and that it can hold `tokens`; grow within the memory that is allowed."""
        table = self._table
        length, busy = table.capacity, int(table.busy.sum())
        if tokens > length:
            needed = _rounded(tokens)
            generous = _rounded(max(tokens, _FIRST_LENGTH, length + length // 2))
            length = generous if self._allowed(generous) >= max(table.slots, busy + 1) else needed
        allowed = self._allowed(length)
        if busy + 1 > allowed:
            return False
        slots = min(table.slots, allowed)
        if not table.empty() and slots == table.slots:
            slots = min(allowed, max(_FIRST_SLOTS, 2 * slots))
        if (slots, length) != (table.slots, table.capacity):
            self._resize(slots, length)
        return True

    def _allowed(self, length: int) -> int:
        return min(self._max_slots, self._max_tokens // (length + 1))

    def _resize(self, slots: int, length: int) -> None:
        keep = self._table.ranked()
        self._stats.evicted += sum(1 for slot in keep[slots:] if self._table.length[slot])
        keep = sorted(keep[:slots]) if slots < self._table.slots else list(range(self._table.slots))
        self._cache = self._cache.rebuilt(keep, self._table.length[keep].tolist(), slots=slots, length=length)
        self._table = self._table.rebuilt(keep, slots, length)
        self._rows = {new: self._rows[old] for new, old in enumerate(keep) if old in self._rows}
        for slot, row in self._rows.items():
            row.slot = slot
        log.debug("key-value cache: %d slots of %d tokens", slots, length)

    def _compact(self) -> None:
        """Move live rows together where too many idle slots lie between them."""
        live = sorted(self._rows)
        if live[-1] + 1 - live[0] <= len(live) * (1 + _IDLE_SHARE) + 1:
            return
        holes = [slot for slot in range(len(live)) if slot not in self._rows]
        for hole, slot in zip(holes, reversed(live), strict=False):
            self._cache.swap(hole, slot, int(max(self._table.length[[hole, slot]])))
            self._table.swap(hole, slot)
            row = self._rows.pop(slot)
            row.slot = hole
            self._rows[hole] = row

    # ------------------------------------------------------------------ forwards

    def _prefill(self, rows: Sequence[Row]) -> None:
        """Compute what is planned and missing in the slots of `rows`, rows of like length together."""
        table = self._table
        missing = {row.slot: int(table.planned[row.slot] - table.length[row.slot]) for row in rows}
        missing = {slot: count for slot, count in missing.items() if count}
        self._stats.prefilled += sum(missing.values())
        while missing:
            order = sorted(missing, key=lambda slot: (-missing[slot], slot))
            width = min(missing[order[0]], _PREFILL_PIECE)
            fit = max(1, _PREFILL_TOKENS // width)
            # Padding is computed as well, so a row joins only where it fills half of its line or lines are short.
            batch = [slot for slot in order[:fit] if 2 * missing[slot] >= width or width <= _SHARE]
            self._prefill_piece(np.array(sorted(batch)), width)
            for slot in batch:
                missing[slot] = int(table.planned[slot] - table.length[slot])
            missing = {slot: count for slot, count in missing.items() if count}

    def _prefill_piece(self, slots: Slots, width: int) -> None:
        table = self._table
        start = table.length[slots][:, None]
        end = np.minimum(table.planned[slots][:, None], start + width)
        positions = start + np.arange(width)
        real = positions < end
        positions = np.minimum(positions, end - 1)
        ids = np.take_along_axis(table.tokens[slots], positions, axis=1).astype(np.int64)
        targets = np.where(real, positions, self._cache.length)
        contiguous = slots.size == slots[-1] + 1 - slots[0]
        rows = slice(int(slots[0]), int(slots[-1]) + 1) if contiguous else self._tensor(slots)
        self._run(rows, slots, ids, positions, targets, int(end.max()))
        table.length[slots] = end[:, 0]
        self._stats.prefill_forwards += 1

    def _run(
        self,
        rows: slice | Tensor,
        slots: Slots,
        ids: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        targets: npt.NDArray[np.int64],
        reach: int,
    ) -> Tensor:
        """One forward of `(B, T)` tokens: `(B, V)` logits at the last of each row."""
        where = self._tensor(positions)
        self._cache.aim(rows, self._tensor(slots), self._tensor(targets), reach)
        mask = self._kind.mask(where, reach, self._forward.dtype)
        return self._forward.cached(self._tensor(ids), mask, where, self._cache)

    def _tensor(self, array: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._forward.device)


def _rounded(tokens: int) -> int:
    return -(-tokens // _LENGTH_STEP) * _LENGTH_STEP


def longest(max_tokens: int) -> int:
    """Tokens of context plus action that a cache of `max_tokens` can hold for one row."""
    return (max_tokens - 1) // _LENGTH_STEP * _LENGTH_STEP + 1


def probe(forward: Forward, kind: AttentionKind, vocabulary: int) -> int:
    """Prove that cached and plain logits agree for this model, and measure its cache.

    Two rows of different lengths are prefilled together, in two pieces; one is copied; both are decoded by a token.

    Returns:
        Bytes per token of a sequence.

    Raises:
        ArithmeticError: where they differ. Whatever else the model raises when it is called this way passes.
    """
    rows = [((np.arange(n) * 7919 + n) % vocabulary).astype(np.int32) for n in (12, 7)]
    cache = SlotCache(3, 16)

    def run(slots: list[int], starts: list[int], count: int) -> Tensor:
        fresh = np.array(starts)[:, None] + np.arange(count)
        last = np.array([[row.size - 1] for row in rows])
        positions = np.minimum(fresh, last)
        ids = np.stack([row[p] for row, p in zip(rows, positions, strict=True)]).astype(np.int64)
        targets = np.where(fresh > last, cache.length, positions)
        index, where, to, tokens = (
            torch.from_numpy(a).to(forward.device) for a in (np.array(slots), positions, targets, ids)
        )
        reach = int(positions.max()) + 1
        cache.aim(index, index, to, reach)
        return forward.cached(tokens, kind.mask(where, reach, forward.dtype), where, cache)

    with torch.inference_mode():
        run([0, 1], [0, 0], 4)
        run([0, 1], [4, 4], 7)
        cache.copy(1, 2, 6)
        cached, plain = run([0, 2], [11, 6], 1).float(), forward.plain(rows).float()
    gap, scale = float((cached - plain).abs().max()), float(plain.abs().max())
    tolerance = 1e-4 if forward.dtype == torch.float32 else 0.05
    if not gap <= tolerance * scale:
        raise ArithmeticError(
            f"cached logits differ from those of a full forward by {gap:.2g} of {scale:.2g}"
        )
    return cache.bytes_per_token


__all__ = ["CachedBackend", "longest", "probe"]
