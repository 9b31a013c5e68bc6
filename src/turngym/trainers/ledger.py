"""Exactly once: which tasks were trained on, across epochs, checkpoints and resumes.

Tasks are drawn in a shuffled order per epoch, from the run's seed. A draw counts only once it was committed, which
the training loop does together with the update; a run that was killed in between draws the same tasks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turngym.errors import CheckpointError, ConfigError
from turngym.seeding import generator
from turngym.tasks.task import Task


class PromptLedger:
    """Hands out tasks and remembers how far it got.

    Args:
        tasks: all of them; ids must differ.
        seed: of the shuffles.
    """

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        if len({task.task_id for task in tasks}) != len(tasks) or not tasks:
            raise ConfigError("a prompt ledger needs at least one task, and every task_id once")
        self._tasks, self._seed = list(tasks), seed
        self._committed = self._drawn = 0
        self._epoch, self._order = -1, [0]

    def draw(self, count: int) -> list[Task]:
        """The next `count` tasks; an epoch's end runs over into the next."""
        tasks = [self._at(self._drawn + i) for i in range(count)]
        self._drawn += count
        return tasks

    def commit(self) -> None:
        """Everything drawn so far was trained on."""
        self._committed = self._drawn

    def rollback(self) -> None:
        """Forget what was drawn and not committed."""
        self._drawn = self._committed

    @property
    def epoch(self) -> float:
        """Passes over the tasks that are committed, with the fraction of the running one."""
        return self._committed / len(self._tasks)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"committed": self._committed, "tasks": len(self._tasks), "seed": self._seed}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint.

        Raises:
            CheckpointError: where it belongs to other tasks or another seed.
        """
        mine = self.state()
        for name in ("tasks", "seed"):
            if state[name] != mine[name]:
                raise CheckpointError(
                    f"the checkpoint's ledger has {name}={state[name]}, this run has {mine[name]}"
                )
        self._committed = self._drawn = int(state["committed"])

    def _at(self, index: int) -> Task:
        epoch, offset = divmod(index, len(self._tasks))
        if epoch != self._epoch:
            rng = generator(self._seed, "epoch", epoch)
            self._epoch, self._order = epoch, rng.permutation(len(self._tasks)).tolist()
        return self._tasks[self._order[offset]]
