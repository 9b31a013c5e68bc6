"""Which tokens each slot of the key-value cache holds, and which slot a context should go to. Plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from turngym.types import IntArray

Slots = npt.NDArray[np.int64]


class SlotTable:
    """The bookkeeping of `slots` slots of `capacity` tokens.

    `length` tokens of a slot have been computed; up to `planned` are about to be. A busy slot belongs to a live row.
    """

    def __init__(self, slots: int, capacity: int) -> None:
        self.slots, self.capacity = slots, capacity
        self.tokens = np.zeros((slots, capacity), np.int32)
        self.length = np.zeros(slots, np.int64)
        self.planned = np.zeros(slots, np.int64)
        self.busy = np.zeros(slots, np.bool_)
        self._used = np.zeros(slots, np.int64)
        self._clock = 0

    # ------------------------------------------------------------------ questions

    def shared(self, context: IntArray) -> Slots:
        """`(slots,)` computed tokens that each slot has in common with the beginning of `context`.

        The last token of a context never counts: its logits are wanted, so it is always computed.
        """
        return np.minimum(self._agreement(context), self.length)

    def planned_gain(self, context: IntArray) -> int:
        """Tokens of `context` that will be in a slot once what is planned is computed, beyond those that are."""
        if not (self.planned > self.length).any():
            return 0
        agreement = self._agreement(context)
        return int(np.minimum(agreement, self.planned).max() - np.minimum(agreement, self.length).max())

    def extendable(self, shared: Slots) -> int | None:
        """The free slot whose whole content is the longest prefix, or None."""
        whole = np.where((shared == self.length) & (shared > 0) & ~self.busy, shared, 0)
        best = int(whole.argmax())
        return best if whole[best] else None

    def empty(self) -> bool:
        """True where a free slot holds nothing."""
        return bool((~self.busy & (self.length == 0)).any())

    def victim(self, *, avoid: int | None) -> int:
        """A free slot to overwrite: an empty one, else the least recently used; `avoid` only if it is the last."""
        order = np.lexsort((np.arange(self.slots), self._used, self.length > 0))
        free = [int(slot) for slot in order if not self.busy[slot]]
        return next((slot for slot in free if slot != avoid), free[0])

    def ranked(self) -> list[int]:
        """Every slot, the most worth keeping first: busy ones, then the most recently used."""
        return [int(slot) for slot in np.lexsort((-self._used, ~self.busy))]

    # ------------------------------------------------------------------ changes

    def take(self, slot: int, context: IntArray, reuse: int) -> None:
        """Make `slot` busy with `context`, of which `reuse` tokens are computed and the last one waits."""
        count = context.size - 1
        self.tokens[slot, reuse:count] = context[reuse:count]
        self.tokens[slot, :reuse] = context[:reuse]
        self.length[slot], self.planned[slot], self.busy[slot] = reuse, count, True
        self._touch(slot)

    def append(self, slots: Slots, tokens: IntArray) -> None:
        """One more computed token in each of `slots`."""
        self.tokens[slots, self.length[slots]] = tokens
        self.length[slots] += 1
        self.planned[slots] = self.length[slots]

    def free(self, slot: int) -> None:
        """The row of `slot` is gone; what is computed stays."""
        self.busy[slot] = False
        self.planned[slot] = self.length[slot]
        self._touch(slot)

    def swap(self, a: int, b: int) -> None:
        """Exchange two slots."""
        for array in (self.tokens, self.length, self.planned, self.busy, self._used):
            array[[a, b]] = array[[b, a]]

    def rebuilt(self, keep: Sequence[int], slots: int, capacity: int) -> SlotTable:
        """A table of another size in which slot i is what `keep[i]` was."""
        other = SlotTable(slots, capacity)
        width = min(capacity, self.capacity)
        count = len(keep)
        other.tokens[:count, :width] = self.tokens[keep, :width]
        for name in ("length", "planned", "busy", "_used"):
            getattr(other, name)[:count] = getattr(self, name)[keep]
        other._clock = self._clock
        return other

    def _touch(self, slot: int) -> None:
        self._clock += 1
        self._used[slot] = self._clock

    def _agreement(self, context: IntArray) -> Slots:
        """`(slots,)` tokens from the start that equal `context`, whether computed or not."""
        width = min(context.size - 1, int(self.planned.max(initial=0)))
        differs = self.tokens[:, :width] != context[:width]
        if not width:
            return np.zeros(self.slots, np.int64)
        first = differs.argmax(axis=1)
        return np.where(differs[np.arange(self.slots), first], first, width)
