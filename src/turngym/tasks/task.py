"""A task is data: which environment, with which options, from which seed. Making the environment is `registry.make`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turngym.errors import ConfigError
from turngym.seeding import derive


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem. Equal tasks give equal first observations."""

    task_id: str
    "unique within a run; statistics cluster by it"
    env_id: str
    "as `registry.make` takes it"
    seed: int
    "given to `env.reset`"
    options: Mapping[str, Any] = field(default_factory=dict)
    "constructor options of the environment"


def procedural(
    env_id: str, *, fold: str | None, count: int, seed: int = 0, options: Mapping[str, Any] | None = None
) -> list[Task]:
    """`count` tasks of an environment that deals its instances from a seed.

    Args:
        env_id: a registered id.
        fold: `train` or `test` for environments that keep folds apart (turngym's own games); None for the
            others, whose tasks then differ by seed alone.
        count: how many; at least 1.
        seed: root of the tasks' seeds. The name of the fold goes into them, too.
        options: more constructor options.

    >>> [t.task_id for t in procedural("turngym/Corridor-v0", fold="test", count=2)]
    ['turngym/Corridor-v0#test/0', 'turngym/Corridor-v0#test/1']
    """
    if count < 1:
        raise ConfigError(f"a task set needs at least one task, got {count}")
    made = dict(options or {})
    if fold is not None and made.get("fold", fold) != fold:
        raise ConfigError(f"tasks of fold {fold!r} can't have the option fold={made['fold']!r}: leave it out")
    if fold is not None:
        made["fold"] = fold
    name = fold or "seed"
    knobs = ",".join(f"{k}={v}" for k, v in sorted((options or {}).items()))
    label = f"{env_id}?{knobs}" if knobs else env_id
    return [
        Task(
            task_id=f"{label}#{name}/{i}",
            env_id=env_id,
            # Gymnasium's seeds are non-negative and, in many environments, 32 bits.
            seed=derive(seed, "task", name, i) & 0x7FFFFFFF,
            options=made,
        )
        for i in range(count)
    ]
