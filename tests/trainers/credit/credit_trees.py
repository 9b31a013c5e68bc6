"""Builds trees for the tests of the credit rules from nested lists.

A number is a last action with that reward. A list is an action, the observation after it, and what follows:
more than one entry is a branching. `Turn` gives the action a reward or starts a new context; `Leaf` a stop.
The tree as a whole is the list of what follows the root observation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from turngym.tree import Kind, Origin, Tree
from turngym.types import Outcome, StopReason


@dataclass
class Leaf:
    reward: float | None
    stop: StopReason | None = StopReason.TERMINATED
    outcome: Outcome | None = None


@dataclass
class Turn:
    below: list[Spec] = field(default_factory=list)
    reward: float | None = None
    starts_context: bool = False


Spec = float | Leaf | Turn | list["Spec"]


def grow(spec: list[Spec], *, name: str = "tree") -> Tree:
    tree = Tree(task_id="task", rollout_id=name)
    root = tree.add(-1, Kind.OBSERVATION, [0, 1], origin=Origin.TEMPLATE)
    for entry in spec:
        _grow(tree, root, entry)
    return tree


def _grow(tree: Tree, parent: int, spec: Spec) -> None:
    if isinstance(spec, list):
        spec = Turn(spec)
    if not isinstance(spec, (Leaf, Turn)):
        spec = Leaf(float(spec))
    action = tree.add(
        parent, Kind.ACTION, [2], origin=Origin.SAMPLED, logprobs=[-1.0], version=0, reward=spec.reward
    )
    if isinstance(spec, Leaf):
        tree[action].stop = spec.stop
        tree[action].outcome = spec.outcome
        return
    observation = tree.add(
        action, Kind.OBSERVATION, [3], origin=Origin.ENV, starts_context=spec.starts_context
    )
    for entry in spec.below:
        _grow(tree, observation, entry)


def actions(tree: Tree) -> list[int]:
    """Action nodes, oldest first."""
    return [node.index for node in tree if node.is_action]
