"""Multi-turn function calling: the 800 multi-turn tasks of the Berkeley Function-Calling Leaderboard, v4.

Patil et al., "The Berkeley Function Calling Leaderboard" (ICML 2025); the package `bfcl-eval`, which pins half of its
world, runs in a worker (`worker_env`). A user makes several requests in a row. To each the policy makes calls, as many
messages of them as it needs (the package's limit is 21), and ends its turn with a message without a call. After the
last one the package's own `multi_turn_checker` plays calls and solution side by side, and compares states and results
after every turn; success is its word, and the only reward.

Different from the package's own harness: a call is JSON; a message that tries to call and can't be read is answered and
counts as one of the 21 where the package would end the turn; a function that does not exist is answered with the
nearest one and not shown to the checker.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from turngym.envs.adapters.worker import WorkerSlot
from turngym.envs.adapters.worker_env import WorkerEnv
from turngym.envs.adapters.worker_venv import Pins
from turngym.errors import unknown_name

CATEGORIES = ("all", "base", "miss_func", "miss_param", "long_context")

PINS = Pins("bfcl", ("bfcl-eval==2026.3.23", "filelock==3.20.0", "mpmath==1.3.0"))
"""All that the multi-turn tasks import. The package's own list has 40 more, for the models that it calls."""


class BFCL(WorkerEnv):
    """Function calling over several requests of a user: file system, trading, travel, vehicle and other APIs.

    Args:
        category: `base`; `miss_func`, where a function is held back until later; `miss_param`, where the user first
            forgets to say something; `long_context`, where answers are long; or `all` of them, 200 tasks each.
        task: a task's id, `multi_turn_base_0`; the seed draws one where it is left out.
        max_turns: messages of the policy in all, beside the package's own limit of 21 a request.
        render_mode: None or `ansi`.

    Raises:
        UnknownName: for a category, or at the reset for a task, that does not exist.
        MissingDependency: at the reset, where the worker's virtual environment can't be made.
    """

    slot: ClassVar[WorkerSlot] = WorkerSlot(PINS, "inside.bfcl_side")

    def __init__(
        self,
        *,
        category: Literal["all", "base", "miss_func", "miss_param", "long_context"] = "all",
        task: str | None = None,
        max_turns: int = 200,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(task=task, max_turns=max_turns, render_mode=render_mode)
        if category not in CATEGORIES:
            raise unknown_name("category of BFCL", category, CATEGORIES)
        self.category = category

    def task_options(self) -> dict[str, Any]:
        """The category."""
        return {"category": self.category}


__all__ = ["BFCL", "CATEGORIES", "PINS"]
