"""A problem of the lab as an environment: the same chances, turn by turn, with exact forks.

The observation is the name of the row, which is what the policy may know; the action is the name of an action. What
hides behind a row (a truth that was not seen, an error that was not noticed) is in the state key alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from turngym.envs.base import Forking, TurnEnv
from turngym.errors import unknown_name
from turngym.trainers.lab.mdps import PROBLEMS
from turngym.types import Reply


class LabEnv(TurnEnv):
    """One problem of `PROBLEMS`.

    An action that does not exist ends the episode and pays nothing: the policy caused it.

    Args:
        problem: its name.
        render_mode: None or `ansi`.

    Raises:
        UnknownName: for another name.
    """

    forking: ClassVar[Forking] = Forking.EXACT
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, problem: str = "stopping", *, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        if problem not in PROBLEMS:
            raise unknown_name("problem of the lab", problem, PROBLEMS)
        self.mdp = PROBLEMS[problem]
        self._state = 0

    @property
    def state(self) -> int:
        """Index of the state in `mdp.states`; their number when the episode is over."""
        return self._state

    def start(self, options: Mapping[str, Any]) -> Reply:
        """Every episode starts in the first state."""
        for name in options:
            raise unknown_name(f"reset option of {type(self).__name__}", name, [])
        self._state = 0
        return Reply(self._words())

    def act(self, action: str) -> Reply:
        """Take the named action, if the state has it."""
        mdp, here = self.mdp, self._state
        choice = mdp.actions.index(action) if action in mdp.actions else -1
        if choice < 0 or not mdp.policy[here, choice]:
            self._state = len(mdp.states)
            return Reply("there is no such action", terminated=True, success=False)
        self._state = int(self.np_random.choice(len(mdp.states) + 1, p=mdp.chance[here, choice]))
        over = self._state == len(mdp.states)
        return Reply(
            "the end" if over else self._words(), reward=float(mdp.reward[here, choice]), terminated=over
        )

    def get_state(self) -> int:
        """The state's index."""
        return self._state

    def set_state(self, state: int) -> None:
        """Put a state back."""
        self._state = state

    def _words(self) -> str:
        mdp = self.mdp
        row = mdp.row[self._state]
        known = [name for name, chance in zip(mdp.actions, mdp.policy[self._state], strict=True) if chance]
        return f"{mdp.rows[row]}; say one of: {', '.join(known)}"
