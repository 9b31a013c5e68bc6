"""Numbers about a batch of trees, worked out by hand."""

from __future__ import annotations

import pytest

from turngym.trainers.metrics import rollout_metrics
from turngym.tree import Kind, Origin, Tree
from turngym.types import Outcome, StopReason


class Grown(Tree):
    """A tree of which actions have 2 tokens and observations 3."""

    def __init__(self) -> None:
        super().__init__(task_id="t", rollout_id="t")
        self.add(-1, Kind.OBSERVATION, [0, 0, 0], origin=Origin.ENV, starts_context=True)

    def say(self, parent: int, reward: float = 0.0) -> int:
        ids = [1, 1]
        return self.add(
            parent, Kind.ACTION, ids, origin=Origin.SAMPLED, logprobs=[-1.0, -1.0], version=0, reward=reward
        )

    def see(self, parent: int, *, starts_context: bool = False) -> int:
        return self.add(parent, Kind.OBSERVATION, [2, 2, 2], origin=Origin.ENV, starts_context=starts_context)

    def end(self, leaf: int, stop: StopReason, outcome: Outcome) -> None:
        self[leaf].stop, self[leaf].outcome = stop, outcome

    def win(self, parent: int) -> None:
        self.end(self.say(parent, 1.0), StopReason.TERMINATED, Outcome.SUCCESS)

    def lose(self, parent: int) -> None:
        self.end(self.say(parent), StopReason.ENV_LIMIT, Outcome.FAILURE)

    def fault(self, parent: int) -> None:
        self.end(self.say(parent), StopReason.ENV_FAULT, Outcome.ENV_FAULT)


def group(*, wins: int, losses: int, faults: int = 0) -> Grown:
    tree = Grown()
    for _ in range(wins):
        tree.win(0)
    for _ in range(losses):
        tree.lose(0)
    for _ in range(faults):
        tree.fault(0)
    return tree


def test_a_group_is_counted_path_by_path() -> None:
    tree = group(wins=1, losses=3)
    assert rollout_metrics([tree]) == {
        "rollout/success": 0.25,
        "rollout/reward": 0.25,
        "rollout/turns": 1.0,
        "rollout/action_tokens": 2.0,
        "rollout/paths": 4.0,
        "rollout/unique_tokens": 3.0 + 4 * 2,
        "rollout/path_tokens": 4 * (3.0 + 2),
        "faults/paths": 0.0,
        "stop/terminated": 1.0,
        "stop/env_limit": 3.0,
    }


def test_paths_below_a_fork_are_averaged_before_they_are_averaged_with_others() -> None:
    # The root has two children: a win, and a path that forked after its first action and then lost three times
    # and won once. Counted path by path that were 2 of 5; the root is worth (1 + 1/4) / 2.
    tree = Grown()
    tree.win(0)
    point = tree.see(tree.say(0))
    tree.win(point)
    for _ in range(3):
        tree.lose(point)
    metrics = rollout_metrics([tree])
    assert metrics["rollout/success"] == metrics["rollout/reward"] == 0.625
    assert metrics["rollout/paths"] == 5
    assert metrics["rollout/turns"] == (1 + 4 * 2) / 5
    assert metrics["rollout/unique_tokens"] == 3 + 2 + (2 + 3) + 4 * 2
    assert metrics["rollout/path_tokens"] == (3 + 2) + 4 * (3 + 2 + 3 + 2)


def test_trees_count_alike_whatever_they_forked() -> None:
    assert rollout_metrics([group(wins=8, losses=0), group(wins=0, losses=2)])["rollout/success"] == 0.5


def test_a_fault_is_counted_apart_and_moves_nothing_else() -> None:
    clean, faulty = (
        rollout_metrics([group(wins=2, losses=2)]),
        rollout_metrics([group(wins=2, losses=2, faults=3)]),
    )
    assert faulty["faults/paths"] == faulty["stop/env_fault"] == 3
    for key in ("rollout/success", "rollout/reward", "rollout/turns", "rollout/paths", "rollout/path_tokens"):
        assert faulty[key] == clean[key]


def test_a_tree_of_faults_alone_is_missing_not_lost() -> None:
    dead = group(wins=0, losses=0, faults=4)
    assert rollout_metrics([dead, group(wins=1, losses=1)])["rollout/success"] == 0.5
    metrics = rollout_metrics([dead])
    assert "rollout/success" not in metrics
    assert "rollout/reward" not in metrics
    assert metrics["rollout/paths"] == 0
    assert metrics["faults/paths"] == 4
    assert rollout_metrics([])["rollout/paths"] == 0


@pytest.mark.parametrize("restarts", [False, True])
def test_a_path_in_many_contexts_counts_as_it_would_in_one(restarts: bool) -> None:
    tree = Grown()
    node = 0
    for _ in range(3):
        node = tree.see(tree.say(node), starts_context=restarts)
    tree.win(node)
    metrics = rollout_metrics([tree])
    assert metrics["rollout/turns"] == 4
    assert metrics["rollout/paths"] == 1
    assert metrics["rollout/path_tokens"] == metrics["rollout/unique_tokens"] == 3 + 3 * (2 + 3) + 2


def test_a_budget_that_cut_a_path_shows_as_its_stop_and_as_no_success() -> None:
    tree = group(wins=1, losses=0)
    tree.end(tree.see(tree.say(0, 0.5)), StopReason.CONTEXT, Outcome.TRUNCATED)
    metrics = rollout_metrics([tree])
    assert metrics["stop/context"] == 1
    assert metrics["rollout/success"] == 0.5
    assert metrics["rollout/reward"] == 0.75
