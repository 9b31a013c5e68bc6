"""Builds trees for the tests of the credit rules from nested lists.

A number is a last action with that reward. A list is an action, the observation after it, and what follows:
more than one entry is a branching. `Turn` gives the action a reward or starts a new context; `Leaf` a stop.
The tree as a whole is the list of what follows the root observation.

Every tree carries what some rule asks for: values, matches and norms that are the same everywhere, and a state key that
tells the turn, so actions of one turn were taken in one state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from turngym.trainers.credit import get_rule
from turngym.trainers.credit.base import Credit
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


ALONE = ("pvpo", "v_half", "returns_to_go", "turn_gae", "tree_value", "sao")
"""Rules whose baseline is not the group's."""
TIMED = ("reinforce_pp", "gigpo", "graph", "ui_s1", "otb", "murphy", "returns_to_go", "turn_gae")
TIMED += ("tree_value", "sao")
"""Rules that look at when a reward came."""
UNDISCOUNTED = {"gigpo": {"gamma": 1.0}, "ui_s1": {"gamma": 1.0}}

Spec = float | Leaf | Turn | list["Spec"]


def grow(spec: list[Spec], *, name: str = "tree") -> Tree:
    tree = Tree(task_id="task", rollout_id=name)
    root = tree.add(-1, Kind.OBSERVATION, [0, 1], origin=Origin.TEMPLATE)
    for entry in spec:
        _grow(tree, root, entry)
    return annotated(tree)


def annotated(tree: Tree) -> Tree:
    for node in tree:
        if node.is_action:
            node.metrics.update(match=1.0, score_norm=0.5)
            node.values = np.full(len(node.ids), 0.25)
        else:
            node.metrics["value"] = 0.25
            node.state_key = f"{len(tree.actions(node.index)) + 1:032x}"
    if len(tree):
        tree[0].metrics["prior_value"] = 0.5
    return tree


def score(name: str, tree: Tree, **options: object) -> Credit:
    """What the rule `name` says about one tree, with one number an action (every action has one token here)."""
    (credit,) = get_rule(name, **options)([tree])
    credit.advantages.update(
        {node: np.asarray(a).item() for node, a in credit.advantages.items() if np.size(a) == 1}
    )
    return credit


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
