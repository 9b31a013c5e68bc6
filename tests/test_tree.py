"""The record: what a tree answers, what it refuses, and that a refused node leaves no trace."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

from turngym.errors import TreeError
from turngym.tree import Kind, Node, Origin, Tree
from turngym.types import Outcome, StopReason

KEY = "00112233445566778899aabbccddeeff"


def observe(tree: Tree, parent: int, ids: list[int], **fields: Any) -> int:
    return tree.add(parent, Kind.OBSERVATION, ids, origin=fields.pop("origin", Origin.ENV), **fields)


def act(tree: Tree, parent: int, ids: list[int], kind: Kind = Kind.ACTION, **fields: Any) -> int:
    logprobs = fields.pop("logprobs", [-0.5] * len(ids))
    return tree.add(parent, kind, ids, origin=Origin.SAMPLED, logprobs=logprobs, version=1, **fields)


@pytest.fixture
def tree() -> Tree:
    """Two paths that share one turn; the first is summarised.

        0 [1 2 3] ── 1 action [4 5] ── 2 [6] ─┬─ 3 summary [7 8] ── 4 (new context) [9 7 8] ── 5 action [10]
                        reward 1              └─ 6 action [11 12 13]
    """  # fmt: skip
    tree = Tree(task_id="corridor/7", rollout_id="run/0", seed=3)
    observe(tree, -1, [1, 2, 3], origin=Origin.TEMPLATE, starts_context=True)
    act(tree, 0, [4, 5], reward=1.0)
    observe(tree, 1, [6], state_key=KEY)
    act(tree, 2, [7, 8], Kind.SUMMARY)
    observe(tree, 3, [9, 7, 8], origin=[Origin.TEMPLATE, Origin.HARNESS, Origin.HARNESS], starts_context=True)
    act(tree, 4, [10], reward=0.25)
    act(tree, 2, [11, 12, 13], reward=-2.0)
    return tree


# ---------------------------------------------------------------------- reading


def test_context_is_what_the_policy_saw(tree: Tree) -> None:
    assert tree.context(3).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert tree.context(4).tolist() == [9, 7, 8]
    assert tree.context(5).tolist() == [9, 7, 8, 10]
    assert tree.context(6).tolist() == [1, 2, 3, 4, 5, 6, 11, 12, 13]
    assert tree.context(-1).tolist() == []


def test_paths_segments_actions_and_leaves(tree: Tree) -> None:
    assert tree.leaves == [5, 6]
    assert tree.path(5) == [0, 1, 2, 3, 4, 5]
    assert tree.path(-1) == []
    assert tree.segments(5) == [[0, 1, 2, 3], [4, 5]]
    assert tree.segments(6) == [[0, 1, 2, 6]]
    assert tree.actions(5) == [1, 3, 5]
    assert [tree.children(i) for i in range(len(tree))] == [[1], [2], [3, 6], [4], [5], [], []]


def test_a_shared_prefix_counts_once(tree: Tree) -> None:
    """3 + 2 + 1 + 2 + 3 + 1 + 3 tokens; the policy sampled 2 + 2 + 1 + 3 of them."""
    assert tree.tokens == 15
    assert tree.sampled_tokens == 8


def test_path_return_sums_rewards_and_skips_nodes_without(tree: Tree) -> None:
    assert tree.path_return(5) == 1.25
    assert tree.path_return(6) == -1.0
    assert tree.path_return(0) == 0.0


def test_children_and_leaves_stay_right_while_the_tree_grows(tree: Tree) -> None:
    assert tree.children(6) == []
    late = observe(tree, 6, [14])
    assert tree.children(6) == [late]
    assert tree.children(late) == []
    assert tree.leaves == [5, late]


def test_void_paths_are_those_that_end_in_a_fault(tree: Tree) -> None:
    tree[5].stop = StopReason.ENV_FAULT
    tree[6].stop = StopReason.TURNS
    assert (tree.void(5), tree.void(6), tree.void(0)) == (True, False, False)


@pytest.mark.parametrize(
    "ask", [Tree.path, Tree.context, Tree.children, Tree.segments, Tree.actions, Tree.__getitem__]
)
@pytest.mark.parametrize("node", [7, 10_000, -2])
def test_a_node_that_does_not_exist_is_an_index_error(tree: Tree, ask: Any, node: int) -> None:
    """Arrays have spare room behind the last node: what stands there must never be read."""
    with pytest.raises(IndexError, match=f"7 nodes, there is no node {node}"):
        ask(tree, node)


def test_the_last_node_is_not_at_minus_one(tree: Tree) -> None:
    """-1 is the parent of the root, so Python's habit of counting from the end would hide mistakes."""
    for ask in (tree.children, tree.__getitem__):
        with pytest.raises(IndexError):
            ask(-1)


def test_node_fields(tree: Tree) -> None:
    node = tree[4]
    assert (node.index, node.parent, node.kind, node.is_action, node.starts_context) == (
        4,
        3,
        Kind.OBSERVATION,
        False,
        True,
    )
    assert node.ids.dtype == np.int32
    assert node.origin.tolist() == [2, 3, 3]
    assert np.isnan(node.logprobs).all()
    assert node.version.tolist() == [-1, -1, -1]
    assert node.loss_mask.tolist() == [False] * 3
    assert (node.reward, node.advantage, node.state_key, node.snapshot, node.stop, node.outcome) == (
        None,
    ) * 6
    action = tree[1]
    assert (action.is_action, action.reward, action.logprobs.tolist(), action.version.tolist()) == (
        True,
        1.0,
        [-0.5] * 2,
        [1, 1],
    )
    assert action.loss_mask.all()
    assert tree[2].state_key == KEY
    assert [n.index for n in tree] == list(range(7))
    assert repr(tree[3]) == "Node(3, SUMMARY, 2 tokens, parent=2)"
    assert repr(tree) == "Tree('run/0', task='corridor/7', nodes=7, tokens=15, leaves=2)"


def test_views_refuse_writes_and_outlive_growth(tree: Tree) -> None:
    ids = tree[1].ids
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 99
    for _ in range(1000):
        observe(tree, 0, [1, 2, 3])
    assert ids.tolist() == tree[1].ids.tolist() == [4, 5]


def test_growth_keeps_every_value() -> None:
    tree = Tree(task_id="t", rollout_id="r")
    for i in range(3000):
        if i % 2:
            act(tree, i - 1, [i, i + 1], logprobs=[-i, -i / 2], reward=float(i), state_key=f"{i:032x}")
        else:
            observe(tree, i - 1, [i])
    assert [tree[i].ids.tolist() for i in (1, 2999, 2998)] == [[1, 2], [2999, 3000], [2998]]
    assert tree[2999].logprobs.tolist() == [-2999.0, -1499.5]
    assert (tree[2999].reward, tree[2998].reward, tree[2998].advantage, tree[2998].state_key) == (
        2999.0,
        None,
        None,
        None,
    )
    assert tree[777].state_key == f"{777:032x}"
    assert tree[2998].version.tolist() == [-1]


def test_arrays_take_at_most_twenty_bytes_a_token_and_200_a_node() -> None:
    tree = Tree(task_id="t", rollout_id="r")
    for i in range(5000):
        observe(tree, i - 1, [1] * 7)
    assert tree.nbytes <= 20 * tree.tokens + 200 * len(tree)


# ---------------------------------------------------------------------- adding


def test_mixed_spans_keep_scores_where_sampled() -> None:
    tree = Tree(task_id="t", rollout_id="r")
    observe(tree, -1, [1])
    nan = np.float32(np.uint32(0xFFC00001).view(np.float32))  # some other NaN: equal records have equal bytes
    node = tree.add(
        0, Kind.ACTION, [5, 6, 7], origin=[Origin.SAMPLED, Origin.TEMPLATE, Origin.SAMPLED],
        logprobs=np.array([-1.5, nan, -0.0], np.float32), version=4,
    )  # fmt: skip
    assert tree[node].version.tolist() == [4, -1, 4]
    assert tree[node].loss_mask.tolist() == [True, False, True]
    assert tree[node].logprobs.tobytes() == np.array([-1.5, np.nan, -0.0], np.float32).tobytes()


def test_spans_may_be_empty() -> None:
    tree = Tree(task_id="t", rollout_id="r")
    observe(tree, -1, [])
    act(tree, 0, [])
    tree.add(1, Kind.ACTION, [], origin=Origin.SAMPLED)
    tree.add(2, Kind.OBSERVATION, np.empty(0, np.int32), origin=np.empty(0, np.uint8))
    assert (len(tree), tree.tokens, tree.context(3).tolist()) == (4, 0, [])


def test_numpy_and_lists_give_the_same_record() -> None:
    def grown(wrap: Any) -> Tree:
        tree = Tree(task_id="t", rollout_id="r")
        tree.add(-1, Kind.OBSERVATION, wrap([1, 2]), origin=wrap([1, 2]))
        tree.add(
            0,
            Kind.ACTION,
            wrap([3, 4]),
            origin=wrap([0, 0]),
            logprobs=wrap([-1.0, -2.0]),
            version=wrap([7, 8]),
        )
        return tree

    assert grown(list) == grown(np.array) == grown(tuple)


nan, inf = math.nan, math.inf
ACTION = {"kind": Kind.ACTION, "ids": [1, 2], "origin": Origin.SAMPLED, "logprobs": [-1.0, -1.0]}
OBSERVATION = {"kind": Kind.OBSERVATION, "ids": [1, 2], "origin": Origin.ENV}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (OBSERVATION | {"parent": -1}, "can't have parent -1"),
        (OBSERVATION | {"parent": 7}, "can't have parent 7"),
        (OBSERVATION | {"parent": -2}, "can't have parent -2"),
        (OBSERVATION | {"ids": [[1, 2]]}, r"ids of node 7 must be \(T,\) integers, got int64 \(1, 2\)"),
        (OBSERVATION | {"ids": 3}, "must be"),
        (OBSERVATION | {"ids": [1.0, 2.5]}, "integers, got float64"),
        (OBSERVATION | {"origin": [1]}, r"origin of node 7 has shape \(1,\), its ids have 2 tokens"),
        (OBSERVATION | {"origin": [1, 4]}, "origin of node 7 holds 4"),
        (OBSERVATION | {"origin": Origin.SAMPLED, "logprobs": [-1.0, -1.0]}, "OBSERVATION with SAMPLED"),
        (OBSERVATION | {"origin": [1, 0], "logprobs": [nan, -1.0]}, "OBSERVATION with SAMPLED"),
        (OBSERVATION | {"logprobs": [-1.0, nan]}, "exactly the SAMPLED tokens"),
        (OBSERVATION | {"logprobs": [nan, nan, nan]}, "logprobs of node 7 has shape"),
        (ACTION | {"logprobs": [-1.0]}, r"logprobs of node 7 has shape \(1,\)"),
        (ACTION | {"logprobs": [-1.0, nan]}, "exactly the SAMPLED tokens"),
        (ACTION | {"logprobs": [-1.0, -inf]}, "exactly the SAMPLED tokens"),
        (ACTION | {"logprobs": None}, "exactly the SAMPLED tokens"),
        (ACTION | {"origin": [0, 2]}, "exactly the SAMPLED tokens"),
        (ACTION | {"origin": [0, 2], "logprobs": [-1.0, -inf]}, "exactly the SAMPLED tokens"),
        (ACTION | {"origin": [0, 2], "logprobs": [nan, nan]}, "exactly the SAMPLED tokens"),
        (ACTION | {"version": [1, 2, 3]}, "version of node 7 has shape"),
        (ACTION | {"reward": nan}, "reward of node 7 must be finite, got nan"),
        (ACTION | {"reward": -inf}, "reward of node 7 must be finite"),
        (ACTION | {"state_key": "abc"}, "a state key is 32 hex digits, got 'abc'"),
        (ACTION | {"state_key": "zz" * 16}, "32 hex digits"),
        (ACTION | {"state_key": "ab " * 16}, "32 hex digits"),
    ],
)  # fmt: skip
def test_a_bad_node_is_refused_and_leaves_no_trace(tree: Tree, fields: dict[str, Any], words: str) -> None:
    before = copy.deepcopy(tree)
    arguments = {"parent": 0, **fields}
    with pytest.raises(TreeError, match=words):
        tree.add(arguments.pop("parent"), arguments.pop("kind"), arguments.pop("ids"), **arguments)
    assert tree == before
    # Nor does what was refused shine through in the next node, which takes the same place.
    observe(tree, 0, [8, 9])
    assert np.isnan(tree[7].logprobs).all()
    assert (tree[7].version.tolist(), tree[7].reward, tree[7].state_key) == ([-1, -1], None, None)


def test_the_first_node_is_the_root() -> None:
    with pytest.raises(TreeError, match="node 0 can't have parent 0"):
        observe(Tree(task_id="t", rollout_id="r"), 0, [1])


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_a_seed_has_63_bits(seed: int) -> None:
    with pytest.raises(TreeError, match="seed"):
        Tree(task_id="t", rollout_id="r", seed=seed)


@pytest.mark.parametrize("field", ["task_id", "rollout_id", "renderer_hash"])
def test_names_must_be_unicode(field: str) -> None:
    with pytest.raises(TreeError, match="valid Unicode"):
        Tree(**{"task_id": "t", "rollout_id": "r", field: "half \ud800"})


# ---------------------------------------------------------------------- writing to nodes


def test_advantage_is_none_a_number_or_one_a_token(tree: Tree) -> None:
    node = tree[6]
    assert node.advantage is None
    node.advantage = 0.0
    assert node.advantage == 0.0
    node.advantage = [0.5, -1, 0]
    assert isinstance(node.advantage, np.ndarray)
    assert (node.advantage.dtype, node.advantage.tolist()) == (np.float32, [0.5, -1.0, 0.0])
    with pytest.raises(ValueError, match="read-only"):
        node.advantage[0] = nan
    node.advantage = np.float64(2.0)
    assert node.advantage == 2.0
    node.advantage = None
    assert node.advantage is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (nan, "must be finite, got nan"),
        (inf, "must be finite"),
        ([0.0, nan, 0.0], "must be finite"),
        ([0.0, 1e300, 0.0], "must be finite"),
        ([0.0, 1.0], r"has shape \(2,\), its ids \(3,\)"),
        ([[0.0, 1.0, 2.0]], r"has shape \(1, 3\)"),
    ],
)
def test_a_bad_advantage_is_refused_and_the_old_one_stays(tree: Tree, value: Any, words: str) -> None:
    tree[6].advantage = 0.5
    with pytest.raises(TreeError, match=words):
        tree[6].advantage = value
    assert tree[6].advantage == 0.5


def test_an_observation_has_no_advantage(tree: Tree) -> None:
    with pytest.raises(TreeError, match="node 2 is an observation"):
        tree[2].advantage = 0.0
    tree[2].advantage = None


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_a_reward_is_finite(tree: Tree, value: float) -> None:
    with pytest.raises(TreeError, match="must be finite"):
        tree[1].reward = value
    assert tree[1].reward == 1.0
    tree[1].reward = None
    assert tree[1].reward is None


def test_what_was_set_can_be_taken_back(tree: Tree) -> None:
    before = copy.deepcopy(tree)
    node = tree[5]
    for field, value in (
        ("stop", StopReason.TURNS),
        ("outcome", Outcome.TRUNCATED),
        ("snapshot", object()),
        ("state_key", KEY),
    ):
        setattr(node, field, value)
        assert getattr(node, field) == value
        setattr(node, field, None)
        assert getattr(node, field) is None
    assert tree == before


# ---------------------------------------------------------------------- equality


def changes() -> list[Any]:
    def at(field: str, value: Any) -> Any:
        return pytest.param(lambda tree: setattr(tree[1], field, value), id=field)

    def of_tree(field: str, value: Any) -> Any:
        return pytest.param(lambda tree: setattr(tree, field, value), id=field)

    return [
        at("reward", 0.5), at("advantage", 0.0), at("advantage", [0.0, 0.0]), at("state_key", KEY), at("stop", StopReason.TURNS),
        at("outcome", Outcome.SUCCESS), of_tree("task_id", "x"), of_tree("rollout_id", "x"), of_tree("seed", 9),
        of_tree("renderer_hash", "x"), of_tree("meta", {"a": 1}),
        pytest.param(lambda tree: tree[1].metrics.update(a=1.0), id="metrics"),
        pytest.param(lambda tree: tree[1].log.update(a="b"), id="log"),
        pytest.param(lambda tree: observe(tree, 0, []), id="one more node"),
    ]  # fmt: skip


@pytest.mark.parametrize("change", changes())
def test_every_field_counts_in_equality(tree: Tree, change: Any) -> None:
    other = copy.deepcopy(tree)
    assert tree == other
    change(other)
    assert tree != other


def test_equality_is_by_bits(tree: Tree) -> None:
    other = copy.deepcopy(tree)
    tree[1].metrics["loss"], other[1].metrics["loss"] = float("nan"), float("nan")
    assert tree == other
    tree[1].metrics["loss"], other[1].metrics["loss"] = 0.0, -0.0
    assert tree != other
    other[1].metrics["loss"] = 0.0
    tree[6].advantage, other[6].advantage = [0.0] * 3, [-0.0] * 3
    assert tree != other


def test_reading_and_snapshots_do_not_change_the_record(tree: Tree) -> None:
    other = copy.deepcopy(tree)
    assert other[0].metrics == {}
    assert other[0].log == {}
    other[0].snapshot = object()
    assert tree == other
    assert tree != "tree"


def test_trees_can_be_pickled_and_then_grow(tree: Tree) -> None:
    again = pickle.loads(pickle.dumps(tree))
    assert again == tree
    assert observe(again, 6, [1]) == 7
    assert isinstance(again[7], Node)
