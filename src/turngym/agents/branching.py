"""Where to fork a live episode, and how often: plans that are pure decisions.

A plan is a generator. It yields forks (a decision point and a number of new paths), the driver plays them in live
environments and sends the new leaves back. A plan sees the tree and what is left of the budget; it never touches an
environment, a policy or a clock, so it is tested on trees alone.

    def my_plan(tree, purse, rng):
        leaves = yield [Fork(0, 4)]          # four paths from the root
        ...

Plans: `group` (= GRPO), `random_node` (Tree-GRPO, Ji et al. 2025), `coin` (forks decided without looking at the
future, so that `credit.tree` is unbiased on it), `bisect` (first irrecoverable turn, ELPO).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

import numpy as np

from turngym.errors import ConfigError, unknown_name
from turngym.options import check_keywords
from turngym.tree import Kind, Tree
from turngym.types import Outcome


@dataclass(frozen=True, slots=True)
class Fork:
    """Play `count` new paths from the decision point `node`."""

    node: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBudget:
    """What one tree may cost; None means no limit. Shared prefixes count once.

    Checked before each round of forks: paths of one round run at the same time, so `leaves` is kept exactly, and
    the other two may be overdrawn by the paths of the last round.
    """

    leaves: int | None = None
    "finished paths"
    policy_tokens: int | None = None
    "sampled tokens"
    env_steps: int | None = None
    "calls of `env.step`, those of a replay included"

    def __post_init__(self) -> None:
        for name in ("leaves", "policy_tokens", "env_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"tree budget {name} must be at least 1, got {value}")


@dataclass(slots=True)
class Purse:
    """What one tree has spent of its budget."""

    budget: TreeBudget
    leaves: int = 0
    policy_tokens: int = 0
    env_steps: int = 0

    @property
    def leaves_left(self) -> int:
        """Paths that may still be started; a large number where there is no limit, 0 where any limit is reached."""
        b = self.budget
        if b.policy_tokens is not None and self.policy_tokens >= b.policy_tokens:
            return 0
        if b.env_steps is not None and self.env_steps >= b.env_steps:
            return 0
        return 1 << 30 if b.leaves is None else max(0, b.leaves - self.leaves)


Decisions = Generator[list[Fork], list[int], None]
Plan = Callable[[Tree, Purse, np.random.Generator], Decisions]
P = TypeVar("P", bound=Callable[..., Decisions])

_ROOT_ONLY: WeakSet[Callable[..., Decisions]] = WeakSet()


def root_only(plan: P) -> P:
    """Declare that `plan` forks at the root and nowhere else.

    It then needs no snapshots, and runs on environments that can't be forked in the middle of an episode.
    """
    _ROOT_ONLY.add(plan)
    return plan


def forks_inside(plan: Plan) -> bool:
    """True unless `plan` was declared `root_only`."""
    return getattr(plan, "func", plan) not in _ROOT_ONLY


@root_only
def group(tree: Tree, purse: Purse, rng: np.random.Generator, *, size: int = 8) -> Decisions:
    """`size` paths from the root: a GRPO group."""
    if size < 1:
        raise ConfigError(f"group needs size ≥ 1, got {size}")
    yield [Fork(0, size)]


def random_node(
    tree: Tree, purse: Purse, rng: np.random.Generator, *, roots: int = 2, draws: int = 2, rounds: int = 1
) -> Decisions:
    """Random-node expansion (Tree-GRPO): `roots` chains, then `rounds` times `draws` forks a chain.

    Forks are drawn with replacement, uniformly from the root and the decision points of what has grown from the
    chain. A longer chain offers more late points, so the choice depends a little on the chain's future; see `coin`.
    """
    if roots < 1 or draws < 1 or rounds < 0:
        raise ConfigError(
            f"random_node needs roots ≥ 1, draws ≥ 1, rounds ≥ 0; got {roots}, {draws}, {rounds}"
        )
    chains = _chains(tree, (yield [Fork(0, roots)]))
    for _ in range(rounds):
        forks = []
        for chain in chains:
            points = [0, *_decision_points(tree, chain)]
            forks += [Fork(int(node), 1) for node in rng.choice(points, size=draws)]
        yield forks


def coin(
    tree: Tree,
    purse: Purse,
    rng: np.random.Generator,
    *,
    roots: int = 4,
    probability: float = 0.2,
    width: int = 1,
) -> Decisions:
    """`roots` chains, then at each of their decision points, with `probability`, `width` more paths.

    Whether a point forks does not depend on what happened after it, which is what unbiased tree credit needs.
    """
    if roots < 1 or width < 1 or not 0 <= probability <= 1:
        raise ConfigError(
            f"coin needs roots ≥ 1, width ≥ 1, 0 ≤ probability ≤ 1; got {roots}, {width}, {probability}"
        )
    chains = _chains(tree, (yield [Fork(0, roots)]))
    points = [node for chain in chains for node in _decision_points(tree, chain)]
    yield [Fork(node, width) for node in points if rng.random() < probability]


def bisect(
    tree: Tree,
    purse: Purse,
    rng: np.random.Generator,
    *,
    roots: int = 8,
    failures: int = 3,
    targets: int = 1,
    suffixes_min: int = 1,
    suffixes_max: int = 3,
    beta: float = 5.0,
) -> Decisions:
    """Bisection for the first irrecoverable turn of a failed path (ELPO).

    `roots` full paths; of at most `failures` failed ones the `targets` with the largest rise of surprisal after tool
    results are searched, one after the other. A prefix is alive where one of its suffixes succeeds. The number of
    suffixes is X_min + (X_max − X_min)·σ(β·rise), rounded. What is left of `budget.leaves` goes to more full paths.

    Writes `metrics["critical_turn"]` (0-based) on the failed leaf: after that action, no probe succeeded. With few
    suffixes a living prefix can look dead, so the turn is named too early rather than too late.

    Surprisal (the mean of −log μ over sampled tokens) stands in for the entropy of the paper: its expectation is the
    entropy, and it needs no second look at the logits.
    """
    if min(roots, failures, targets) < 1 or not 1 <= suffixes_min <= suffixes_max or not math.isfinite(beta):
        raise ConfigError(
            "bisect needs roots, failures, targets ≥ 1, 1 ≤ suffixes_min ≤ suffixes_max and a finite beta; got "
            f"{roots}, {failures}, {targets}, {suffixes_min}, {suffixes_max}, {beta}"
        )
    leaves = yield [Fork(0, roots)]
    failed = [leaf for leaf in leaves if _lost(tree, leaf)][:failures]
    won = any(tree[leaf].outcome is Outcome.SUCCESS for leaf in leaves)
    if won:  # where no path succeeds, even the root may be dead: nothing to localise
        failed.sort(key=lambda leaf: -_surprisal_rise(tree, tree.actions(leaf), 0))
        for leaf in failed[:targets]:
            actions = tree.actions(leaf)
            alive, dead = 0, len(actions)  # after `alive` actions a win is possible, after `dead` it is not
            while dead - alive > 1 and purse.leaves_left:
                middle = (alive + dead) // 2
                rise = _surprisal_rise(tree, actions, middle)
                count = round(suffix_count(rise, beta=beta, low=suffixes_min, high=suffixes_max))
                suffixes = yield [Fork(tree[actions[middle]].parent, count)]
                if not suffixes:  # every attempt was void
                    break
                if any(tree[s].outcome is Outcome.SUCCESS for s in suffixes):
                    alive = middle
                else:
                    dead = middle
            if dead - alive == 1:
                tree[leaf].metrics["critical_turn"] = float(alive)
    if purse.budget.leaves is not None and purse.leaves_left:
        yield [Fork(0, purse.leaves_left)]


def suffix_count(rise: float, *, beta: float, low: int, high: int) -> float:
    """Suffixes for one probe of `bisect` before rounding: X_min + (X_max − X_min)·σ(β·rise).

    >>> round(suffix_count(0.5, beta=5.0, low=1, high=3), 3)
    2.848
    """
    return (
        low + (high - low) * (1 + math.tanh(beta * rise / 2)) / 2
    )  # σ, without an exponential that overflows


PLANS: dict[str, Callable[..., Decisions]] = {
    "group": group,
    "random_node": random_node,
    "coin": coin,
    "bisect": bisect,
}


def make_plan(name: str, **options: Any) -> Plan:
    """The plan `name` with its options.

    Raises:
        UnknownName: for a plan or an option that does not exist, naming the nearest.
        ConfigError: for an option of the wrong type or out of range.

    >>> plan = make_plan("group", size=4)
    """
    if name not in PLANS:
        raise unknown_name("branching plan", name, PLANS)
    check_keywords(PLANS[name], options, what=f"plan {name!r}")
    plan = partial(PLANS[name], **options)
    # A plan checks its options before its first decision, and that one needs no tree.
    next(plan(Tree(task_id=name, rollout_id=name), Purse(TreeBudget()), np.random.default_rng(0)))
    return plan


def _chains(tree: Tree, leaves: list[int]) -> list[int]:
    """The first node below the root on the way to each leaf."""
    return [tree.path(leaf)[1] for leaf in leaves]


def _decision_points(tree: Tree, top: int) -> list[int]:
    """Observation nodes from `top` down, in the order of the tree: where the policy spoke and can speak again."""
    found, queue = [], [top]
    while queue:
        node = queue.pop()
        children = tree.children(node)
        if children and tree[node].kind is Kind.OBSERVATION:
            found.append(node)
        queue += reversed(children)
    return found


def _lost(tree: Tree, leaf: int) -> bool:
    return tree[leaf].outcome in (Outcome.FAILURE, Outcome.TRUNCATED) and len(tree.actions(leaf)) > 0


def _surprisal_rise(tree: Tree, actions: list[int], turn: int) -> float:
    """Surprisal of the action at `turn` (0: mean over all later actions) minus that of the first action."""
    first = _surprisal(tree, actions[0])
    if turn:
        return _surprisal(tree, actions[turn]) - first
    rest = [_surprisal(tree, a) for a in actions[1:]]
    return float(np.mean(rest)) - first if rest else 0.0


def _surprisal(tree: Tree, action: int) -> float:
    return -float(np.nanmean(tree[action].logprobs))
