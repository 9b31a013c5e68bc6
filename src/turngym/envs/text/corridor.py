"""Corridor: find the right key, carry it to the locked door, and do nothing that can't be undone too early.

Rooms stand in a row from west to east; the door is in the last one. Two kinds of trap make a mistake
irrecoverable without ending the episode: a *one-way* passage (eastwards only) taken while the key lies behind it,
and a *wrong key* picked up (hands are full for good). The turn limit is the third. So the first irrecoverable turn
of every episode is known exactly, which is what error localisation is measured against: `info["doomed"]`,
for graders only.

Knobs: `rooms`, `one_way`, `decoys`, `slack` (turns beyond the shortest solution).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from turngym.envs.folds import Fold
from turngym.envs.text.game import Feedback, TextGame
from turngym.errors import ConfigError
from turngym.types import ToolCall

COLOURS = ("red", "blue", "green", "gold")


@dataclass(frozen=True, slots=True)
class Layout:
    """What never changes in an episode."""

    rooms: int
    start: int
    door: str
    "colour of the door"
    one_way: frozenset[int]
    "passages b → b + 1 that can't be walked back"
    keys: tuple[tuple[str, int], ...]
    "(colour, room) of every key, the right one first"
    turns: int


@dataclass(slots=True)
class CorridorState:
    """Where the player is and what the hands hold."""

    layout: Layout
    room: int
    holding: str | None = None
    turn: int = 0
    won: bool = False
    lost: bool = False


class Corridor(TextGame[CorridorState]):
    """Rooms in a row, keys, a locked door, one-way passages. Reward 1 for opening the door.

    Args:
        rooms: number of rooms, 3 to 20.
        one_way: number of one-way passages.
        decoys: keys of a wrong colour, 0 to 3.
        slack: turns allowed beyond the shortest solution.
        fold: `train` or `test` instances.
        render_mode: None or `ansi`.
    """

    tools: ClassVar = {"go": ("direction",), "take": ("key",), "open": ()}

    def __init__(
        self,
        *,
        rooms: int = 6,
        one_way: int = 2,
        decoys: int = 2,
        slack: int = 5,
        fold: Fold = "train",
        render_mode: str | None = None,
    ) -> None:
        if not 3 <= rooms <= 20 or not 0 <= one_way < rooms or not 0 <= decoys < len(COLOURS) or slack < 0:
            raise ConfigError(
                "Corridor needs 3 ≤ rooms ≤ 20, 0 ≤ one_way < rooms, 0 ≤ decoys ≤ 3, slack ≥ 0; "
                f"got {rooms}, {one_way}, {decoys}, {slack}"
            )
        super().__init__(fold=fold, render_mode=render_mode)
        self.rooms, self.one_way, self.decoys, self.slack = rooms, one_way, decoys, slack

    def deal(self) -> CorridorState:
        """Draw a layout; passages between the key and a start east of it stay two-way, so it can be solved."""
        rng, rooms = self.np_random, self.rooms
        start, key = int(rng.integers(0, rooms - 1)), int(rng.integers(0, rooms))
        door, *others = (COLOURS[int(i)] for i in rng.permutation(len(COLOURS)))
        passages = [b for b in range(rooms - 1) if not key <= b < start]
        count = min(self.one_way, len(passages))
        one_way = frozenset(int(b) for b in rng.choice(passages, size=count, replace=False))
        decoys = tuple((colour, int(rng.integers(0, rooms))) for colour in others[: self.decoys])
        shortest = abs(start - key) + 1 + (rooms - 1 - key) + 1
        layout = Layout(rooms, start, door, one_way, ((door, key), *decoys), shortest + self.slack)
        return CorridorState(layout, start)

    def turn_limit(self, state: CorridorState) -> int:
        """The shortest solution plus the slack."""
        return state.layout.turns

    def instance(self, state: CorridorState) -> Any:
        """The whole layout."""
        return state.layout

    def rules(self, state: CorridorState) -> str:
        """How to win and how to call the tools."""
        return (
            "Take the key of the door's colour, go to the last room and open the door. "
            "You can hold one key and never drop it. A one-way passage leads east only.\n"
            "Tools: go(direction: east|west), take(key), open(). One call a turn:\n"
            '<tool_call>{"name": "go", "arguments": {"direction": "east"}}</tool_call>'
        )

    def opening(self, state: CorridorState) -> str:
        """The task and the first room."""
        return f"The door is {state.layout.door}. You have {state.layout.turns} turns.\n{self._view(state)}"

    def call(self, state: CorridorState, call: ToolCall) -> Feedback:
        """Move, take or open."""
        if call.name == "go":
            return self._go(state, call.arguments["direction"])
        if call.name == "take":
            return self._take(state, call.arguments["key"])
        return self._open_door(state)

    def doomed(self, state: CorridorState) -> bool:
        """True where the shortest solution from here does not exist or needs more turns than are left."""
        needed = self._turns_needed(state)
        return needed is None or needed > state.layout.turns - state.turn

    def best_call(self, state: CorridorState) -> ToolCall:
        """Walk to the key, take it, walk to the door, open it."""
        (colour, key), last = state.layout.keys[0], state.layout.rooms - 1
        if state.holding is None and state.room == key:
            return ToolCall("take", {"key": colour})
        if state.holding == colour and state.room == last:
            return ToolCall("open", {})
        target = key if state.holding is None else last
        return ToolCall("go", {"direction": "east" if target > state.room else "west"})

    def random_call(self, state: CorridorState, rng: Any) -> ToolCall:
        """Any direction, any key in the room, or the door where it is."""
        options = [ToolCall("go", {"direction": d}) for d in ("east", "west")]
        options += [ToolCall("take", {"key": colour}) for colour in self._keys_here(state)]
        if state.room == state.layout.rooms - 1:
            options.append(ToolCall("open", {}))
        return options[int(rng.integers(len(options)))]

    # ------------------------------------------------------------------ rules

    def _go(self, state: CorridorState, direction: Any) -> Feedback:
        if direction not in ("east", "west"):
            return Feedback("Error: direction is east or west.")
        room = state.room + (1 if direction == "east" else -1)
        if not 0 <= room < state.layout.rooms:
            return Feedback(f"There is a wall. {self._view(state)}")
        if direction == "west" and room in state.layout.one_way:
            return Feedback(f"The passage is one-way. {self._view(state)}")
        state.room = room
        return Feedback(self._view(state))

    def _take(self, state: CorridorState, key: Any) -> Feedback:
        if state.holding is not None:
            return Feedback(f"Your hands are full. {self._view(state)}")
        if key not in self._keys_here(state):
            return Feedback(f"No such key here. {self._view(state)}")
        state.holding = key
        return Feedback(f"Taken. {self._view(state)}")

    def _open_door(self, state: CorridorState) -> Feedback:
        if state.room != state.layout.rooms - 1:
            return Feedback(f"There is no door here. {self._view(state)}")
        if state.holding != state.layout.door:
            return Feedback(f"It is locked. {self._view(state)}")
        state.won = True
        return Feedback("The door opens.", reward=1.0)

    def _keys_here(self, state: CorridorState) -> list[str]:
        return [c for c, room in state.layout.keys if room == state.room and c != state.holding]

    def _view(self, state: CorridorState) -> str:
        layout, room = state.layout, state.room
        west = "wall" if room == 0 else "one-way" if room - 1 in layout.one_way else "open"
        east = "door" if room == layout.rooms - 1 else "one-way" if room in layout.one_way else "open"
        keys = ", ".join(self._keys_here(state)) or "none"
        door, (colour, place) = layout.rooms - 1, layout.keys[0]
        goal = f"door in room {door}" if state.holding == colour else f"{colour} key in room {place}"
        return f"Room {room}. West: {west}. East: {east}. Keys: {keys}. Hands: {state.holding or 'empty'}. Goal: {goal}."

    def _turns_needed(self, state: CorridorState) -> int | None:
        """Turns of the shortest solution from `state`; None where there is none."""
        if state.won:
            return 0
        (colour, key), last = state.layout.keys[0], state.layout.rooms - 1
        if state.holding == colour:
            return last - state.room + 1
        if state.holding is not None or any(b in state.layout.one_way for b in range(key, state.room)):
            return None
        return abs(state.room - key) + 1 + (last - key) + 1
