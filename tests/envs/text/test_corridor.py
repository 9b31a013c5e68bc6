"""Corridor's rules, by transcripts worked out by hand."""

from __future__ import annotations

import pytest

from turngym.envs.text.corridor import Corridor, CorridorState, Layout
from turngym.toolcalls import format_call
from turngym.types import ToolCall


def corridor(*, room: int, one_way: frozenset[int] = frozenset(), turns: int = 9) -> Corridor:
    """Four rooms; the red door in room 3, its key in room 1, a blue key in room 2."""
    env = Corridor()
    env.reset(seed=0)
    env.set_state(CorridorState(Layout(4, room, "red", one_way, (("red", 1), ("blue", 2)), turns), room))
    return env


def go(direction: str) -> str:
    return format_call(ToolCall("go", {"direction": direction}))


def take(key: str) -> str:
    return format_call(ToolCall("take", {"key": key}))


OPEN = format_call(ToolCall("open", {}))


def test_a_won_game_reads_as_worked_out_by_hand() -> None:
    env = corridor(room=0, one_way=frozenset({2}))
    key, door = "Goal: red key in room 1.", "Goal: door in room 3."
    expected = [
        (go("west"), f"There is a wall. Room 0. West: wall. East: open. Keys: none. Hands: empty. {key}"),
        (go("east"), f"Room 1. West: open. East: open. Keys: red. Hands: empty. {key}"),
        (OPEN, f"There is no door here. Room 1. West: open. East: open. Keys: red. Hands: empty. {key}"),
        (take("red"), f"Taken. Room 1. West: open. East: open. Keys: none. Hands: red. {door}"),
        (go("east"), f"Room 2. West: open. East: one-way. Keys: blue. Hands: red. {door}"),
        (
            take("blue"),
            f"Your hands are full. Room 2. West: open. East: one-way. Keys: blue. Hands: red. {door}",
        ),
        (go("east"), f"Room 3. West: one-way. East: door. Keys: none. Hands: red. {door}"),
        (
            go("west"),
            f"The passage is one-way. Room 3. West: one-way. East: door. Keys: none. Hands: red. {door}",
        ),
    ]
    for action, text in expected:
        observation, reward, terminated, truncated, info = env.step(action)
        assert (observation, reward, terminated, truncated, info["doomed"]) == (
            text,
            0.0,
            False,
            False,
            False,
        )
    observation, reward, terminated, truncated, info = env.step(OPEN)
    assert (observation, reward, terminated, truncated) == ("The door opens.", 1.0, True, False)
    assert info["success"] is True
    assert info["doomed"] is False


def test_a_one_way_passage_past_the_key_dooms() -> None:
    env = corridor(room=0, one_way=frozenset({1}))
    assert env.step(go("east"))[4]["doomed"] is False
    assert env.step(go("east"))[4]["doomed"] is True


def test_a_wrong_key_dooms_and_does_not_open_the_door() -> None:
    env = corridor(room=2)
    assert env.step(take("gold"))[0].startswith("No such key here.")
    observation, _, _, _, info = env.step(take("blue"))
    assert info["doomed"] is True
    assert observation.endswith(
        "Hands: blue. Goal: red key in room 1."
    )  # the game does not say that it is lost
    env.step(go("east"))
    assert env.step(OPEN)[0].startswith("It is locked.")


@pytest.mark.parametrize(("turns", "doomed"), [(6, False), (5, True)])
def test_too_few_turns_left_doom(turns: int, doomed: bool) -> None:
    # From room 0: east, take, east, east, open are 5 turns; the wall costs one more.
    env = corridor(room=0, turns=turns)
    assert env.step(go("west"))[4]["doomed"] is doomed


def test_the_turn_limit_truncates() -> None:
    env = corridor(room=0, turns=2)
    assert env.step(go("west"))[3] is False
    assert env.step(go("west"))[2:4] == (False, True)
