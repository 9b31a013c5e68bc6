"""The table of slots finds the longest prefix and gives up the least recently used."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from turngym.agents.policies.slots import SlotTable


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def filled(table: SlotTable, slot: int, *tokens: int) -> None:
    """Slot holds `tokens`, all computed, and is free."""
    table.take(slot, ids(*tokens, 0), reuse=0)
    table.length[slot] = len(tokens)
    table.free(slot)


CONTEXT = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(st.lists(CONTEXT, min_size=1, max_size=5), CONTEXT)
def test_shared_is_the_common_prefix_without_the_last_token(
    contents: list[list[int]], context: list[int]
) -> None:
    table = SlotTable(len(contents), 8)
    for slot, content in enumerate(contents):
        filled(table, slot, *content)
    expected = []
    for content in contents:
        n = 0
        while n < min(len(content), len(context) - 1) and content[n] == context[n]:
            n += 1
        expected.append(n)
    assert table.shared(ids(*context)).tolist() == expected


def test_a_free_slot_is_extended_only_where_its_whole_content_is_a_prefix() -> None:
    table = SlotTable(3, 8)
    filled(table, 0, 1, 2)
    filled(table, 1, 1, 2, 3, 9)
    filled(table, 2, 1, 2, 3)
    assert table.extendable(table.shared(ids(1, 2, 3, 4, 5))) == 2
    table.take(2, ids(1, 2, 3, 4, 5), reuse=3)
    assert table.extendable(table.shared(ids(1, 2, 3, 4, 5))) == 0
    assert table.extendable(table.shared(ids(7, 7))) is None


def test_what_is_planned_counts_as_a_gain_until_it_is_computed() -> None:
    table = SlotTable(2, 8)
    assert table.planned_gain(ids(1, 2, 3, 4)) == 0
    table.take(0, ids(1, 2, 3, 4), reuse=1)
    assert table.planned_gain(ids(1, 2, 3, 4)) == 2
    table.length[0] = 3
    assert table.planned_gain(ids(1, 2, 3, 4)) == 0


def test_victims_are_empty_then_least_recently_used_and_never_busy() -> None:
    table = SlotTable(4, 8)
    for slot in (0, 1, 2):
        filled(table, slot, slot)
    assert table.victim(avoid=None) == 3
    filled(table, 3, 3)
    table.take(0, ids(0, 5), reuse=1)
    assert table.victim(avoid=None) == 1
    assert table.victim(avoid=1) == 2
    table.free(0)
    assert [table.victim(avoid=None), table.ranked()] == [1, [0, 3, 2, 1]]
    for slot in (0, 2, 3):
        table.take(slot, ids(9, 9), reuse=0)
    assert table.victim(avoid=1) == 1


def test_a_freed_slot_keeps_only_what_was_computed() -> None:
    table = SlotTable(1, 8)
    table.take(0, ids(1, 2, 3, 4), reuse=0)
    table.free(0)
    assert table.shared(ids(1, 2, 3, 4)).tolist() == [0]


def test_swapping_and_rebuilding_keep_contents() -> None:
    table = SlotTable(3, 8)
    for slot in range(3):
        filled(table, slot, slot, slot)
    table.swap(0, 2)
    assert table.shared(ids(2, 2, 2)).tolist() == [2, 0, 0]
    other = table.rebuilt([0, 2], 4, 16)
    assert other.shared(ids(0, 0, 0)).tolist() == [0, 2, 0, 0]
    assert (other.slots, other.capacity) == (4, 16)
    assert other.empty()
    filled(other, 2, 7)
    assert other.ranked()[0] == 2
