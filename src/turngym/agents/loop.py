"""The agent loop, and the only one: sample an action, step the environment, record both.

`begin` resets the environment and plants the root of a tree; `play` continues from any decision point of a tree to
the end of a path. A decision point is an observation node: the policy is about to speak. Everything else (where
to fork, how many paths run at once, who retries) is decided elsewhere and passed in.

    context = tree.context(node)                  what the policy is given, token for token
    sample  = await policy.sample(context)        becomes an ACTION node, as sampled
    reply   = await env.step_async(text)          becomes its reward and an OBSERVATION node

A fault (environment or harness) ends the path with that stop reason and no outcome that counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from turngym.agents.policy import Policy, Sample, SampleParams, Turn
from turngym.envs.base import Forking, TurnEnv
from turngym.errors import ConfigError, EnvFault, Fault
from turngym.seeding import turn_seed
from turngym.tree import Kind, Origin, Tree
from turngym.types import Budget, Outcome, StopReason

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """How every path of a run is played."""

    budget: Budget = field(default_factory=Budget)
    "limits of one path"
    temperature: float = 1.0
    "0 is greedy"
    top_p: float = 1.0
    top_k: int = 0
    state_keys: bool = False
    "record `env.state_key()` at every decision point"
    snapshots: bool = False
    "keep a snapshot at every decision point, so that paths can fork there later (implies `state_keys`)"
    deadline_s: float = 600.0
    "one sample or one env step that takes longer is a fault of the harness or the environment"


async def begin(env: TurnEnv, tree: Tree, policy: Policy, options: LoopOptions, *, task_seed: int) -> int:
    """Reset `env` and plant the root of `tree`. Returns the root: the first decision point.

    Raises:
        ConfigError: where the first prompt and one action don't fit the model's window or the budget.
        EnvFault: where the environment can't start.
    """
    try:
        async with asyncio.timeout(options.deadline_s):
            _, info = await env.reset_async(seed=task_seed)
    except TimeoutError as error:
        raise EnvFault(f"{tree.task_id}: reset took longer than {options.deadline_s} s") from error
    rendered = policy.renderer.open(info["messages"])
    limit, needed = _context_limit(policy, options.budget), rendered.ids.size + options.budget.turn_tokens
    if limit is not None and needed > limit:
        raise ConfigError(
            f"{tree.task_id}: the first prompt has {rendered.ids.size} tokens and an action up to "
            f"{options.budget.turn_tokens}, but a context of {policy.name} holds {limit}: "
            "lower budget.turn_tokens, raise budget.context_tokens, or choose a model with a longer window"
        )
    root = tree.add(-1, Kind.OBSERVATION, rendered.ids, origin=rendered.origin, starts_context=True)
    _mark(env, tree, root, options)
    return root


async def play(env: TurnEnv, tree: Tree, node: int, policy: Policy, options: LoopOptions, *, seed: int) -> int:
    """Play from the decision point `node`, which `env` stands at, to the end of the path.

    Args:
        env: an environment in the state of `node`; the caller owns it.
        tree: grows by one path below `node`.
        node: an observation node.
        policy: who acts.
        options: budgets and sampling.
        seed: seeds every action of this path.

    Returns:
        The leaf: the last action, or an observation where a budget or a fault of the policy ended the path. Its
        `stop` and `outcome` are set.
    """
    budget, renderer = options.budget, policy.renderer
    turn = len(tree.actions(node))
    sampled = sum(tree[i].ids.size for i in tree.actions(node))
    started = time.monotonic()
    while True:
        context = tree.context(node)
        stop = _exhausted(budget, policy, turn, sampled, context.size, time.monotonic() - started)
        if stop is not None:
            return _close(tree, node, stop)
        params = SampleParams(
            max_tokens=min(budget.turn_tokens, (budget.episode_tokens or 1 << 30) - sampled),
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            seed=turn_seed(seed, turn),
        )
        try:
            async with asyncio.timeout(options.deadline_s):
                sample = await policy.sample(context, params, Turn(env, env.observation, turn))
        except (TimeoutError, Fault) as error:
            return _close_fault(tree, node, StopReason.HARNESS_FAULT, error)
        action = _record(tree, node, sample)
        turn, sampled = turn + 1, sampled + sample.ids.size
        try:
            async with asyncio.timeout(options.deadline_s):
                _, reward, terminated, truncated, info = await env.step_async(renderer.text(sample.ids))
        except (TimeoutError, Fault) as error:
            return _close_fault(tree, action, StopReason.ENV_FAULT, error)
        tree[action].reward = reward
        if terminated or truncated:
            stop = StopReason.TERMINATED if terminated else StopReason.ENV_LIMIT
            return _close(tree, action, stop, success=info["success"])
        rendered = renderer.reply(info["messages"], ended=sample.finish_reason == "stop")
        if budget.observation_tokens is not None and rendered.ids.size > budget.observation_tokens:
            return _close(tree, action, StopReason.TOOL_OUTPUT)
        node = tree.add(action, Kind.OBSERVATION, rendered.ids, origin=rendered.origin)
        _mark(env, tree, node, options)


def check_options(options: LoopOptions, policy: Policy, env: TurnEnv) -> None:
    """Refuse, at the start of a run, what this policy and environment can't honour.

    Raises:
        ConfigError: for a context budget beyond the model's window, or snapshots of an environment without forks.
    """
    context = options.budget.context_tokens
    if policy.window is not None and context is not None and context > policy.window:
        raise ConfigError(f"budget.context_tokens is {context}, but {policy.name} has a window of {policy.window}")
    if options.snapshots and env.forking is Forking.NONE:
        raise ConfigError(f"{type(env).__name__} has forking=none: only root groups can be grown on it")
    if options.deadline_s <= 0:
        raise ConfigError(f"deadline_s must be positive, got {options.deadline_s}")


def _exhausted(
    budget: Budget, policy: Policy, turn: int, sampled: int, context: int, elapsed_s: float
) -> StopReason | None:
    limit = _context_limit(policy, budget)
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


def _record(tree: Tree, node: int, sample: Sample) -> int:
    return tree.add(
        node,
        Kind.ACTION,
        sample.ids,
        origin=Origin.SAMPLED,
        logprobs=sample.logprobs,
        version=sample.version,
    )


def _mark(env: TurnEnv, tree: Tree, node: int, options: LoopOptions) -> None:
    """Write what a later fork or credit rule needs to know about a decision point."""
    if options.snapshots:
        snapshot = env.snapshot()
        tree[node].snapshot = snapshot
        tree[node].state_key = snapshot.state_key
    elif options.state_keys:
        tree[node].state_key = env.state_key()


def _close(tree: Tree, node: int, stop: StopReason, *, success: bool | None = None) -> int:
    tree[node].stop = stop
    tree[node].outcome = Outcome.of(stop, success)
    return node


def _close_fault(tree: Tree, node: int, stop: StopReason, error: Exception) -> int:
    logger.warning("%s: %s at node %d: %r", tree.rollout_id, stop, node, error)
    tree[node].log["fault"] = f"{type(error).__name__}: {error}"
    return _close(tree, node, stop)


