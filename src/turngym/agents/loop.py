"""The agent loop, and the only one: sample an action, step the environment, record both.

`begin` resets the environment and plants the root of a tree; `play` continues from any decision point of a tree to
the end of a path. A decision point is an observation node: the policy is about to speak. Everything else (where
to fork, how many paths run at once, who retries) is decided elsewhere and passed in.

    sample  = await policy.sample(context)        the ids of tree.context(node), token for token
    reply   = await env.step_async(text)          what the policy said, as text
    tree.add(ACTION), tree.add(OBSERVATION)       both as they were, with the reward between them

Whatever breaks on the policy's side of the loop or on the environment's ends the path with a fault and an outcome
that never counts; only a `ConfigError`, which no retry could cure, is raised.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

import numpy as np

from turngym.agents.chat import Rendered
from turngym.agents.policy import Policy, Sample, SampleParams, Turn
from turngym.envs.base import Forking, Snapshot, TurnEnv
from turngym.errors import ConfigError, EnvFault, Fault, HarnessFault, TurngymError
from turngym.seeding import turn_seed
from turngym.tree import Kind, Origin, Tree
from turngym.types import Budget, IntArray, Outcome, StopReason

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """How every path of a run is played."""

    budget: Budget = field(default_factory=Budget)
    "limits of one path, checked before each action"
    temperature: float = 1.0
    "0 is greedy"
    top_p: float = 1.0
    "keep the smallest set of tokens whose probability reaches this"
    top_k: int = 0
    "keep this many tokens; 0 keeps all"
    state_keys: bool = False
    "record `env.state_key()` at every decision point"
    snapshots: bool = False
    "keep a snapshot at every decision point, so that paths can fork there later (implies `state_keys`)"
    deadline_s: float = 600.0
    "one sample or one env step that takes longer is a fault of the harness or the environment"


async def begin(env: TurnEnv, tree: Tree, policy: Policy, options: LoopOptions, *, task_seed: int) -> int:
    """Reset `env` and plant the root of `tree`. Returns the root: the first decision point.

    Raises:
        EnvFault: where the environment can't start. The tree is unchanged then.
    """
    try:
        async with asyncio.timeout(options.deadline_s):
            _, info = await env.reset_async(seed=task_seed)
        rendered = policy.renderer.open(info["messages"])
        return _add_decision_point(env, tree, -1, rendered, options)
    except TurngymError:
        raise
    except TimeoutError as error:
        raise EnvFault(f"{tree.task_id}: reset took longer than {options.deadline_s} s") from error
    except Exception as error:
        raise EnvFault(f"{tree.task_id}: can't begin: {type(error).__name__}: {error}") from error


async def play(
    env: TurnEnv, tree: Tree, node: int, policy: Policy, options: LoopOptions, *, seed: int
) -> int:
    """Play from the decision point `node`, which `env` stands at, to the end of the path.

    Args:
        env: an environment in the state of `node`; the caller owns it.
        tree: grows by one path below `node`.
        node: an observation node.
        policy: who acts.
        options: budgets and sampling.
        seed: seeds every action of this path.

    Returns:
        The leaf, which belongs to this path alone; its `stop` and `outcome` are set. It is the last action, or an
        observation where a budget or a fault of the policy ended the path.

    Raises:
        ConfigError: where policy, renderer or environment refuse what they are asked for.
    """
    budget, renderer, start = options.budget, policy.renderer, node
    limit = _context_limit(policy, budget)
    actions = tree.actions(node)
    turn, sampled = len(actions), sum(tree[i].ids.size for i in actions)
    context, started = _Context(tree.context(node)), time.monotonic()
    while True:
        stop = _exhausted(budget, limit, turn, sampled, context.size, time.monotonic() - started)
        if stop is not None:
            return _close(tree, own_leaf(tree, node, start), stop)
        params = SampleParams(
            max_tokens=min(budget.turn_tokens, (budget.episode_tokens or 1 << 30) - sampled),
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            seed=turn_seed(seed, turn),
        )
        try:
            async with asyncio.timeout(options.deadline_s):
                sample = await policy.sample(context.ids, params, Turn(env, env.observation, turn))
            text = renderer.text(sample.ids)
            action = _add_action(tree, node, sample)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - the policy's side: what breaks there voids this path alone
            return close_void(tree, own_leaf(tree, node, start), _as_fault(error, HarnessFault, options))
        turn, sampled = turn + 1, sampled + sample.ids.size
        try:
            async with asyncio.timeout(options.deadline_s):
                _, reward, terminated, truncated, info = await env.step_async(text)
            tree[action].reward = reward
            if terminated or truncated:
                stop = StopReason.TERMINATED if terminated else StopReason.ENV_LIMIT
                return _close(tree, action, stop, success=info["success"])
            rendered = renderer.reply(info["messages"], ended=sample.finish_reason == "stop")
            if budget.observation_tokens is not None and rendered.ids.size > budget.observation_tokens:
                return _close(tree, action, StopReason.TOOL_OUTPUT)
            node = _add_decision_point(env, tree, action, rendered, options)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - the environment's side, likewise
            return close_void(tree, action, _as_fault(error, EnvFault, options))
        context.extend(sample.ids)
        context.extend(rendered.ids)


def check_options(options: LoopOptions, policy: Policy, env: TurnEnv) -> None:
    """Refuse, at the start of a run, what this policy and environment can't honour.

    Raises:
        ConfigError: for a context budget beyond the model's window, snapshots of an environment without forks, or a
            number out of range.
    """
    context = options.budget.context_tokens
    if policy.window is not None and context is not None and context > policy.window:
        raise ConfigError(
            f"budget.context_tokens is {context}, but {policy.name} has a window of {policy.window}"
        )
    if options.snapshots and env.forking is Forking.NONE:
        raise ConfigError(
            f"{type(env).__name__} has forking=none, so paths can only start at the root: use the plan 'group', "
            "or declare your own plan with branching.root_only"
        )
    if not options.deadline_s > 0:
        raise ConfigError(f"deadline_s must be positive, got {options.deadline_s}")
    SampleParams(temperature=options.temperature, top_p=options.top_p, top_k=options.top_k)


async def check_first_prompt(env: TurnEnv, policy: Policy, options: LoopOptions, *, task_seed: int) -> None:
    """Refuse, at the start of a run, a window that its first task does not fit. A later task that doesn't ends at `CONTEXT`.

    Raises:
        ConfigError: where the first prompt and one action don't fit the model's window or the budget.
    """
    tree = Tree(task_id=type(env).__name__, rollout_id="first prompt")
    try:
        root = await begin(env, tree, policy, options, task_seed=task_seed)
    except EnvFault as error:
        logger.warning("the first prompt could not be looked at: %s", error)
        return
    tokens, turn = len(tree.context(root)), options.budget.turn_tokens
    limit = _context_limit(policy, options.budget)
    if limit is not None and tokens + turn > limit:
        raise ConfigError(
            f"{tree.task_id}: the first prompt has {tokens} tokens and an action up to {turn}, "
            f"but a context of {policy.name} holds {limit}: "
            "lower budget.turn_tokens, raise budget.context_tokens, or choose a model with a longer window"
        )


def close_void(tree: Tree, node: int, fault: Fault) -> int:
    """End a path at its own `node` with a fault, which is logged and kept in the tree. Returns the node."""
    stop = StopReason.HARNESS_FAULT if isinstance(fault, HarnessFault) else StopReason.ENV_FAULT
    logger.warning("%s: %s at node %d: %s", tree.rollout_id, stop, node, fault, exc_info=fault.__cause__)
    tree[node].log["fault"] = f"{type(fault).__name__}: {fault}"
    return _close(tree, node, stop)


class _Context:
    """`tree.context` of a growing path: extended every turn, instead of gathered from all its nodes anew."""

    def __init__(self, ids: IntArray) -> None:
        self._buffer, self.size = ids, ids.size

    @property
    def ids(self) -> IntArray:
        """`(T,)`, read-only; later tokens are appended behind it and never change it."""
        view = self._buffer[: self.size]
        view.flags.writeable = False
        return view

    def extend(self, ids: IntArray) -> None:
        end = self.size + ids.size
        if end > self._buffer.size:
            grown = np.empty(2 * end, np.int32)
            grown[: self.size] = self._buffer[: self.size]
            self._buffer = grown
        self._buffer[self.size : end] = ids
        self.size = end


def _exhausted(
    budget: Budget, limit: int | None, turn: int, sampled: int, context: int, elapsed_s: float
) -> StopReason | None:
    if budget.turns is not None and turn >= budget.turns:
        return StopReason.TURNS
    if budget.episode_tokens is not None and sampled >= budget.episode_tokens:
        return StopReason.EPISODE_TOKENS
    if limit is not None and context + budget.turn_tokens > limit:
        return StopReason.CONTEXT
    if budget.wall_time_s is not None and elapsed_s > budget.wall_time_s:
        return StopReason.WALL_TIME
    return None


def _context_limit(policy: Policy, budget: Budget) -> int | None:
    limits = [n for n in (policy.window, budget.context_tokens) if n is not None]
    return min(limits, default=None)


def _add_action(tree: Tree, node: int, sample: Sample) -> int:
    return tree.add(
        node,
        Kind.ACTION,
        sample.ids,
        origin=Origin.SAMPLED,
        logprobs=sample.logprobs,
        version=sample.version,
    )


def _add_decision_point(
    env: TurnEnv, tree: Tree, parent: int, rendered: Rendered, options: LoopOptions
) -> int:
    """Add an observation with what a later fork or credit rule needs; where `env` can't tell, the tree is unchanged."""
    snapshot: Snapshot | None = env.snapshot() if options.snapshots else None
    key = snapshot.state_key if snapshot else env.state_key() if options.state_keys else None
    root = parent == -1
    node = tree.add(
        parent, Kind.OBSERVATION, rendered.ids, origin=rendered.origin, starts_context=root, state_key=key
    )
    if snapshot:
        tree[node].snapshot = snapshot
    return node


def own_leaf(tree: Tree, node: int, start: int) -> int:
    """`node`; where it is the decision point that the path `start`ed at, which others share, an empty child of it."""
    return tree.add(node, Kind.OBSERVATION, (), origin=Origin.HARNESS) if node == start else node


def _close(tree: Tree, node: int, stop: StopReason, *, success: bool | None = None) -> int:
    tree[node].stop = stop
    tree[node].outcome = Outcome.of(stop, success)
    return node


def _as_fault(error: Exception, side: type[Fault], options: LoopOptions) -> Fault:
    if isinstance(error, Fault):
        return error
    words = str(error) or (
        f"no answer within {options.deadline_s} s" if isinstance(error, TimeoutError) else ""
    )
    fault = side(f"{type(error).__name__}: {words}")
    fault.__cause__ = error
    return fault
