"""Shaping: what is added to the return of a path before any credit rule, for training alone.

The one idea: what is to be encouraged or discouraged beside the outcome is written beside the reward of a path, under
`metrics["shaping"]` of its leaf, where every rule reads it (`base.read_paths`) and nobody else does: the rewards of the
environment, and what is reported and filtered by, stay what they were. A penalty on length that a filter saw would make
almost every group look as if its rollouts had ended differently.

    overlong        a path that came near its limit of tokens loses some
    meds            a failure loses the more, the more often this task has failed in the same way
    trusted_judge   a judge's opinion counts as far as it agrees with the outcomes

`Shaping` applies those that a run names and holds what they remember.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from turngym.errors import ConfigError, CreditError
from turngym.trainers.credit.base import SHAPING, Array
from turngym.trainers.credit.strategies import By, strategies
from turngym.trainers.options import NotNegative, Positive, bind
from turngym.tree import Tree
from turngym.types import Outcome

JUDGE = "judge"
"""Key of `node.metrics` at a leaf: a judge's score of the path, from 0 to 1."""

REMEMBERED = 10_000
"""Tasks whose failures are remembered; the one that was played longest ago is forgotten first."""


# ---------------------------------------------------------------------- formulas


def overlong_penalty(lengths: npt.ArrayLike, *, limit: int, buffer: int, factor: float = 1.0) -> Array:
    """`(G,)` what to add to the reward of a path that came near its limit: min(0, −factor · (n − (limit − buffer)) / buffer).

    0 up to limit − buffer tokens, from there on a straight line to −factor at the limit, and on beyond it.

    Source: soft overlong punishment of DAPO (arXiv:2503.14476).

    Args:
        lengths: `(G,)` sampled tokens of each path.
        limit: tokens that a path may sample.
        buffer: tokens before the limit over which the penalty grows.
        factor: penalty at the limit, in units of the reward.

    Raises:
        ConfigError: unless 0 < buffer ≤ limit and factor ≥ 0.

    >>> overlong_penalty([16000, 16384, 18432, 20480], limit=20480, buffer=4096).tolist()
    [0.0, 0.0, -0.5, -1.0]
    """
    if not (0 < buffer <= limit and 0 <= factor < float("inf")):
        raise ConfigError(
            f"overlong_penalty needs 0 < buffer ≤ limit and factor ≥ 0; got limit={limit}, buffer={buffer}, factor={factor}"
        )
    over = (np.asarray(lengths, np.float64) - (limit - buffer)) / buffer
    return np.minimum(0.0, -factor * over) + 0.0  # + 0: no −0


def repeated_penalty(counts: npt.ArrayLike, *, scale: float = 0.1, most: float = 0.5) -> Array:
    """`(G,)` −min(α · log(|C| + 1), β): what to add to the reward of a failure like |C| earlier ones of its task.

    Source: MEDS (arXiv:2604.11297), from third-party notes that quote the formula. The values of α and β are ours.

    Args:
        counts: `(G,)` |C|.
        scale: α.
        most: β.

    >>> repeated_penalty([0, 1, 9, 10**6]).round(4).tolist()
    [0.0, -0.0693, -0.2303, -0.5]
    """
    return -np.minimum(scale * np.log1p(np.asarray(counts, np.float64)), most) + 0.0


def judge_trust(scores: Array, right: npt.NDArray[np.bool_]) -> float:
    """γ: 1 where the judge likes right paths at least as much as wrong ones, exp(mean right − mean wrong) elsewhere; 0 without both.

    Source: Trust-GRPO of SophiaVL-R1 (arXiv:2505.17018), from its released code, which gives a group that is all right
    or all wrong nothing of the judge, lest his noise become its whole signal.

    Args:
        scores: `(G,)` the judge's, from 0 to 1.
        right: `(G,)` True where the outcome is a success.

    >>> judge_trust(np.array([0.9, 0.5, 0.2]), np.array([True, False, False]))
    1.0
    >>> round(judge_trust(np.array([0.3, 0.8]), np.array([True, False])), 4)
    0.6065
    """
    if right.all() or not right.any():
        return 0.0
    return float(min(1.0, math.exp(scores[right].mean() - scores[~right].mean())))


# ---------------------------------------------------------------------- on trees


@dataclass(slots=True)
class Memory:
    """What shaping knows of earlier updates."""

    updates: int = 0
    failures: dict[str, Counter[str]] = field(default_factory=dict)
    "by task, how often it failed in which way"


def overlong(
    tree: Tree, leaves: Sequence[int], memory: Memory, *, limit: int, buffer: int, factor: NotNegative = 1.0
) -> Array:
    """`(G,)` see `overlong_penalty`; the limit is one of the sampled tokens of a path."""
    lengths = [sum(int(tree[i].loss_mask.sum()) for i in tree.actions(leaf)) for leaf in leaves]
    return overlong_penalty(lengths, limit=limit, buffer=buffer, factor=factor)


def meds(
    tree: Tree,
    leaves: Sequence[int],
    memory: Memory,
    *,
    scale: NotNegative = 0.1,
    most: NotNegative = 0.5,
    by: By = "states",
) -> Array:
    """`(G,)` see `repeated_penalty`: 0 for all but failures, which are counted in the memory after this update.

    MEDS tells kinds of failure apart by clusters of the logits of the model's layers at the answer; here two failures
    are alike where their strategies are (`strategies.strategies`), which needs neither a model nor a number of clusters.
    A path that a budget of ours cut has not failed.
    """
    known = memory.failures.get(tree.task_id, Counter())
    kinds = _failures(tree, leaves, by)
    return np.where(
        [kind is not None for kind in kinds],
        repeated_penalty([known[kind] if kind else 0 for kind in kinds], scale=scale, most=most),
        0.0,
    )


def trusted_judge(
    tree: Tree,
    leaves: Sequence[int],
    memory: Memory,
    *,
    weight: NotNegative = 0.3,
    fade_updates: Positive = 500.0,
) -> Array:
    """`(G,)` γ · weight · exp(−updates / fade_updates) · J: J the judge's score at `metrics["judge"]` of each leaf, γ `judge_trust`.

    So the judge leads early and the outcomes decide late. Source: as `judge_trust`, its constants included.

    Raises:
        CreditError: for a leaf without a score from 0 to 1.
    """
    scores = np.array([_judged(tree, leaf) for leaf in leaves])
    right = np.array([tree[leaf].outcome is Outcome.SUCCESS for leaf in leaves], np.bool_)
    trust = judge_trust(scores, right) if leaves else 0.0
    return trust * weight * math.exp(-memory.updates / fade_updates) * scores


SHAPERS: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {"overlong": overlong, "meds": meds, "trusted_judge": trusted_judge}
)
"""What a run may add to returns, by name; options are the keyword-only parameters."""


class Shaping:
    """The terms that a run adds to its returns.

    Args:
        wanted: options by name of `SHAPERS`.

    Raises:
        UnknownName: for a term or an option that does not exist.
        ConfigError: for an option that is missing, of another type or out of range.
    """

    def __init__(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        self.memory = Memory()
        self.terms: dict[str, Callable[..., Array]] = {}
        self._remember: Callable[[Tree, Sequence[int]], list[str | None]] | None = None
        for name, options in wanted.items():
            if not isinstance(options, Mapping):
                raise ConfigError(f"credit.shaping.{name} must be a table of options, got {options!r}")
            term = bind("shaping", SHAPERS, name, options)
            for parameter in inspect.signature(term).parameters.values():
                if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
                    raise ConfigError(f"shaping {name} needs {parameter.name}: set credit.shaping.{name}")
            term(
                Tree(task_id="", rollout_id=""), [], self.memory
            )  # what does not fit shows before a run starts
            self.terms[name] = term
            if name == "meds":
                self._remember = partial(_failures, by=options.get("by", "states"))

    @property
    def needs_state_keys(self) -> bool:
        """Whether a term looks at the states that were reached; roll out with `LoopOptions.state_keys`."""
        return "meds" in self.terms

    def __call__(self, trees: Sequence[Tree]) -> dict[str, float]:
        """Write `metrics["shaping"]` of every leaf that counts, once an update.

        Returns:
            `shaping/NAME`: mean of each term over the paths that count; nothing where no path does.

        Raises:
            CreditError: for a path that lacks what a term reads.
        """
        added: dict[str, list[float]] = {name: [] for name in self.terms}
        failures: list[tuple[str, str]] = []
        for tree in trees if self.terms else ():
            leaves = [leaf for leaf in tree.leaves if not tree.void(leaf)]
            parts = {name: term(tree, leaves, self.memory) for name, term in self.terms.items()}
            for name, part in parts.items():
                added[name] += part.tolist()
            for i, leaf in enumerate(leaves):
                tree[leaf].metrics[SHAPING] = math.fsum(part[i] for part in parts.values())
            if self._remember:
                kinds = self._remember(tree, leaves)
                failures += [(tree.task_id, kind) for kind in kinds if kind is not None]
        self._learn(failures)
        return {f"shaping/{name}": math.fsum(v) / len(v) for name, v in added.items() if v}

    def _learn(self, failures: Sequence[tuple[str, str]]) -> None:
        """Only now, so that the trees of one update don't depend on their order."""
        memory = self.memory
        memory.updates += 1
        for task, kind in failures:
            counter = memory.failures.pop(task, Counter())
            counter[kind] += 1
            memory.failures[task] = counter  # the newest stand last
        while len(memory.failures) > REMEMBERED:
            memory.failures.pop(next(iter(memory.failures)))

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        failures = {task: dict(kinds) for task, kinds in self.memory.failures.items()}
        return {"updates": self.memory.updates, "failures": failures}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        failures = {task: Counter(kinds) for task, kinds in state["failures"].items()}
        self.memory = Memory(state["updates"], failures)


def _failures(tree: Tree, leaves: Sequence[int], by: By) -> list[str | None]:
    """`(G,)` how each path failed; None where it did not."""
    failed = [leaf for leaf in leaves if tree[leaf].outcome is Outcome.FAILURE]
    kinds = dict(zip(failed, strategies(tree, failed, by, rule="meds"), strict=True))
    return [kinds.get(leaf) for leaf in leaves]


def _judged(tree: Tree, leaf: int) -> float:
    score = tree[leaf].metrics.get(JUDGE, math.nan)
    if not 0 <= score <= 1:
        raise CreditError(
            f"trusted_judge: {tree.rollout_id}: leaf {leaf} has the score {score}: "
            f'write the judge\'s, from 0 to 1, to metrics["{JUDGE}"] of every leaf before'
        )
    return score
