"""turngym: a gym for language-model agents that act over many turns.

    import turngym
    env = turngym.make("turngym/Corridor-v0")          # or gymnasium.make(...)
    observation, info = env.reset(seed=0)
    a, b = env.fork(2)                                  # two live copies, in the middle of the episode

Importing the package registers its environments with Gymnasium. Names are loaded when they are first used, so the
import is quick and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from turngym.envs import register_all
from turngym.registry import list_envs, make, register

if TYPE_CHECKING:
    from turngym.agents.branching import TreeBudget, make_plan
    from turngym.agents.grow import grow
    from turngym.agents.loop import LoopOptions
    from turngym.agents.policies import load_policy
    from turngym.agents.policy import Policy, Sample, SampleParams, Turn
    from turngym.agents.rollout.collect import collect
    from turngym.envs.base import Forking, Snapshot, TurnEnv
    from turngym.envs.checker import check_env
    from turngym.errors import ConfigError, EnvFault, Fault, HarnessFault, TurngymError
    from turngym.tasks.task import Task, procedural
    from turngym.trainers.config import TrainConfig
    from turngym.trainers.evaluate import evaluate
    from turngym.trainers.loop import train
    from turngym.tree import Kind, Node, Origin, Tree
    from turngym.tree_io import load_trees, save_trees
    from turngym.types import Budget, Message, Outcome, Reply, StopReason, ToolCall

__version__ = "0.1.0"

_HOMES = {
    "agents.branching": ("TreeBudget", "make_plan"),
    "agents.grow": ("grow",),
    "agents.loop": ("LoopOptions",),
    "agents.policies": ("load_policy",),
    "agents.policy": ("Policy", "Sample", "SampleParams", "Turn"),
    "agents.rollout.collect": ("collect",),
    "envs.base": ("Forking", "Snapshot", "TurnEnv"),
    "envs.checker": ("check_env",),
    "errors": ("ConfigError", "EnvFault", "Fault", "HarnessFault", "TurngymError"),
    "tasks.task": ("Task", "procedural"),
    "trainers.config": ("TrainConfig",),
    "trainers.evaluate": ("evaluate",),
    "trainers.loop": ("train",),
    "tree": ("Kind", "Node", "Origin", "Tree"),
    "tree_io": ("load_trees", "save_trees"),
    "types": ("Budget", "Message", "Outcome", "Reply", "StopReason", "ToolCall"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Budget",
    "ConfigError",
    "EnvFault",
    "Fault",
    "Forking",
    "HarnessFault",
    "Kind",
    "LoopOptions",
    "Message",
    "Node",
    "Origin",
    "Outcome",
    "Policy",
    "Reply",
    "Sample",
    "SampleParams",
    "Snapshot",
    "StopReason",
    "Task",
    "ToolCall",
    "TrainConfig",
    "Tree",
    "TreeBudget",
    "Turn",
    "TurnEnv",
    "TurngymError",
    "check_env",
    "collect",
    "evaluate",
    "grow",
    "list_envs",
    "load_policy",
    "load_trees",
    "make",
    "make_plan",
    "procedural",
    "register",
    "save_trees",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'turngym' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"turngym.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


register_all()
