"""Many trees of one problem at once: sampled level by level, and each different tree kept once.

The one idea: a credit rule is a pure function of a tree, and small problems have few different trees. So n trees are
drawn as arrays, equal ones are counted, and a rule is asked once about each. The paths below the root are exchangeable,
so they are sorted before the count.

Plans say where a tree branches below its root:

    group       nowhere
    coin        where a coin falls on its edge when a state is reached (`Mdp.fork`): nobody looked ahead
    failed      at a random turn of each path that earned less than expected: the fork looked at how the path ended
    finished    at a random turn of each path: its length tells how it ended
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from turngym.errors import unknown_name
from turngym.trainers.lab.mdps import Array, IntArray, Mdp, exact
from turngym.tree import Kind, Origin, Tree
from turngym.types import StopReason

Plan = Literal["group", "coin", "failed", "finished"]

_OBSERVATION, _PROMPT = 1, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """M actions of many paths and branches, by the order of their birth."""

    owner: IntArray
    "`(M,)` the root's child that an action lies below"
    parent: IntArray
    "`(M,)` the action before, −1 for a first action"
    depth: IntArray
    "`(M,)` actions before"
    state: IntArray
    "`(M,)`"
    action: IntArray
    "`(M,)`"
    after: IntArray
    "`(M,)` the next state; S is the end"

    def take(self, index: IntArray) -> Nodes:
        """Some of them, parents renumbered; `index` holds whole families."""
        place = np.full(len(self.owner) + 1, -1)
        place[index] = np.arange(len(index))
        return Nodes(
            owner=self.owner[index],
            parent=place[self.parent[index]],
            depth=self.depth[index],
            state=self.state[index],
            action=self.action[index],
            after=self.after[index],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """n trees, of which U are different."""

    mdp: Mdp
    trees: list[Tree]
    "`(U,)`"
    taken: list[IntArray]
    "`(U,)` for each tree, by node index: state · A + action, −1 at an observation"
    count: IntArray
    "`(U,)` how often each was drawn"
    order: IntArray
    "`(n,)` which tree was drawn, one after the other"
    steps: IntArray
    "`(U,)` env steps with exact forks: each action once"
    replayed: IntArray
    "`(U,)` env steps that forks by replay add: at each branch, the turns before it"
    roots: int
    "children of each root"

    def head(self, n: int) -> Forest:
        """The first `n` that were drawn."""
        kept, order, count = np.unique(self.order[:n], return_inverse=True, return_counts=True)
        return replace(
            self,
            trees=[self.trees[u] for u in kept],
            taken=[self.taken[u] for u in kept],
            count=count,
            order=order.reshape(-1),
            steps=self.steps[kept],
            replayed=self.replayed[kept],
        )

    def spread(self) -> Forest:
        """Every tree that was drawn on its own, in the order in which it came."""
        kept = self.order.tolist()
        return replace(
            self,
            trees=[self.trees[u] for u in kept],
            taken=[self.taken[u] for u in kept],
            count=np.ones(len(kept), np.int64),
            order=np.arange(len(kept)),
            steps=self.steps[kept],
            replayed=self.replayed[kept],
        )


def sample(mdp: Mdp, plan: Plan, n: int, *, roots: int, seed: int | Sequence[int]) -> Forest:
    """Draw `n` trees with `roots` paths from the start each, branching by `plan`.

    Raises:
        UnknownName: for another plan.
    """
    if plan not in get_args(Plan):
        raise unknown_name("plan of the lab", plan, get_args(Plan))
    rng = np.random.default_rng(seed)
    start = np.arange(n * roots)
    nodes = _grow(mdp, start, np.full(len(start), -1), np.zeros_like(start), rng, coins=plan == "coin")
    if plan in ("failed", "finished"):
        nodes = _fork_afterwards(mdp, nodes, rng, only_failed=plan == "failed")
    order = np.argsort(nodes.owner, kind="stable")
    return _counted(mdp, nodes.take(order), n, roots)


def _grow(
    mdp: Mdp, owner: IntArray, parent: IntArray, state: IntArray, rng: np.random.Generator, *, coins: bool
) -> Nodes:
    """Act once in each of `state`, and go on from what follows until all have ended."""
    end, levels, born, depth = len(mdp.states), [], 0, np.zeros(len(owner), np.int64)
    policy, chance = mdp.policy.cumsum(1), mdp.chance.cumsum(2)
    while len(owner):
        action = _draw(policy[state], rng)
        after = _draw(chance[state, action], rng)
        levels.append((owner, parent, depth, state, action, after))
        alive = np.flatnonzero(after < end)
        if coins:
            alive = np.repeat(alive, 1 + (rng.random(len(alive)) < mdp.fork[after[alive]]))
        owner, parent, depth, state = owner[alive], born + alive, depth[alive] + 1, after[alive]
        born += len(action)
    return Nodes(
        **{
            name: np.concatenate(column)
            for name, column in zip(
                ("owner", "parent", "depth", "state", "action", "after"),
                zip(*levels, strict=True),
                strict=True,
            )
        }
    )


def _draw(cumulative: Array, rng: np.random.Generator) -> IntArray:
    """`(M,)` one index a row of `(M, K)` cumulative chances."""
    below = rng.random((len(cumulative), 1)) * cumulative[:, -1:] >= cumulative
    index: IntArray = below.sum(1)
    return index


def _fork_afterwards(mdp: Mdp, nodes: Nodes, rng: np.random.Generator, *, only_failed: bool) -> Nodes:
    """A second branch from a random turn (but the first) of each finished path, or of each that failed."""
    length = np.bincount(nodes.owner)
    earned = np.bincount(nodes.owner, mdp.reward[nodes.state, nodes.action])
    chosen = (length > 1) & ((earned < exact(mdp).value) | (not only_failed))
    turn = 1 + (rng.random(len(length)) * (length - 1)).astype(np.int64)
    forked = np.flatnonzero(chosen[nodes.owner] & (nodes.depth + 1 == turn[nodes.owner]))
    if not len(forked):
        return nodes
    more = _grow(mdp, nodes.owner[forked], np.full(len(forked), -1), nodes.after[forked], rng, coins=False)
    first = more.parent < 0
    origin = np.empty(len(length), np.int64)
    origin[nodes.owner[forked]] = forked
    parent = np.where(first, origin[more.owner], more.parent + len(nodes.owner))
    depth = more.depth + nodes.depth[origin[more.owner]] + 1
    return Nodes(
        owner=np.concatenate([nodes.owner, more.owner]),
        parent=np.concatenate([nodes.parent, parent]),
        depth=np.concatenate([nodes.depth, depth]),
        state=np.concatenate([nodes.state, more.state]),
        action=np.concatenate([nodes.action, more.action]),
        after=np.concatenate([nodes.after, more.after]),
    )


def _counted(mdp: Mdp, nodes: Nodes, n: int, roots: int) -> Forest:
    """Find equal branches, then equal trees of branches. `nodes` lie together by owner."""
    ends = np.searchsorted(nodes.owner, np.arange(n * roots + 1))
    place = np.arange(len(nodes.owner)) - ends[nodes.owner]
    above = np.where(nodes.parent < 0, -1, nodes.parent - ends[nodes.owner])
    branch, first = _equal_branches(mdp, nodes, place, above, n * roots)
    members = np.sort(branch.reshape(n, roots), axis=1)
    _, index, order, count = np.unique(
        members, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    replayed = np.bincount(nodes.owner, nodes.depth * _born_later(nodes), n * roots).astype(np.int64)
    trees, taken = [], []
    for tree, found in zip(members[index], index, strict=True):
        spans = [slice(ends[first[b]], ends[first[b] + 1]) for b in tree]
        made, pairs = _tree(mdp, nodes, spans, above, str(found))
        trees.append(made)
        taken.append(pairs)
    length = np.diff(ends)
    return Forest(
        mdp=mdp,
        trees=trees,
        taken=taken,
        count=count,
        order=order.reshape(-1),
        steps=length[first[members[index]]].sum(1),
        replayed=replayed[first[members[index]]].sum(1),
        roots=roots,
    )


def _born_later(nodes: Nodes) -> npt.NDArray[np.bool_]:
    """`(M,)` another child of the same action was born before."""
    seen = np.zeros(len(nodes.owner), np.bool_)
    inner = np.flatnonzero(nodes.parent >= 0)
    _, oldest = np.unique(nodes.parent[inner], return_index=True)
    seen[inner] = True
    seen[inner[oldest]] = False
    return seen


def _equal_branches(
    mdp: Mdp, nodes: Nodes, place: IntArray, above: IntArray, owners: int
) -> tuple[IntArray, IntArray]:
    """`(owners,)` number of the kind of each branch, and for each kind the first branch of it.

    A branch is hashed to 64 bits as a sum of random multiples; two that differ meet with a chance of 2⁻⁶⁴.
    """
    states, actions = mdp.reward.shape
    code = ((above + 1) * states + nodes.state) * actions + nodes.action
    code = code * (states + 1) + nodes.after + 1
    factor = np.random.default_rng(0).integers(1, 1 << 63, place.max() + 1, np.uint64) | np.uint64(1)
    hashes = np.zeros(owners, np.uint64)
    np.add.at(hashes, nodes.owner, code.astype(np.uint64) * factor[place])
    _, first, kind = np.unique(hashes, return_index=True, return_inverse=True)
    return kind.reshape(-1), first


def _tree(mdp: Mdp, nodes: Nodes, spans: list[slice], above: IntArray, name: str) -> tuple[Tree, IntArray]:
    """A real tree of some branches, and which state and action stand at each of its nodes."""
    tree = Tree(task_id=mdp.name, rollout_id=name)
    taken = [-1]
    _observe(mdp, tree, -1, 0, _PROMPT)
    tree[0].metrics["prior_value"] = float(mdp.guess[0])
    for span in spans:
        seen: list[int] = []  # the observation after each action of the branch
        for i in range(span.start, span.stop):
            state, action, after = int(nodes.state[i]), int(nodes.action[i]), int(nodes.after[i])
            chances = mdp.policy[state]
            node = tree.add(
                seen[above[i]] if above[i] >= 0 else 0,
                Kind.ACTION,
                [action],
                origin=Origin.SAMPLED,
                logprobs=[np.log(chances[action])],
                version=0,
                reward=float(mdp.reward[state, action]),
            )
            norm = 1 - 2 * chances[action] + chances @ chances
            tree[node].metrics.update(match=1.0, score_norm=float(norm))
            tree[node].values = [mdp.guess[state]]
            taken.append(state * len(mdp.actions) + action)
            if after == len(mdp.states):
                tree[node].stop = StopReason.TERMINATED
                seen.append(-1)
            else:
                seen.append(_observe(mdp, tree, node, after, _OBSERVATION))
                taken.append(-1)
    return tree, np.array(taken)


def _observe(mdp: Mdp, tree: Tree, parent: int, state: int, token: int) -> int:
    node = tree.add(
        parent, Kind.OBSERVATION, [token], origin=Origin.ENV, state_key=f"{mdp.key[state] + 1:032x}"
    )
    tree[node].metrics["value"] = float(mdp.guess[state])
    return node
