"""The contract of an environment: one sentence each (a docstring), and the test that tries to break it.

A test returns what it saw, or raises what went wrong; `repair` says what an author does about it. `checker.py` runs
them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from gymnasium.utils import env_checker

from turngym.envs.base import Forking, TurnEnv
from turngym.envs.bench import Bench, Moment, Scripted, Violation, require, short
from turngym.envs.hostile import CORPUS, hostile_texts, random_texts
from turngym.envs.isolation import GlobalRandom, isolated
from turngym.envs.state import state_digest
from turngym.errors import ConfigError, ForkDiverged, UnknownName
from turngym.types import Reply

PATIENCE_S = 5.0
"""CPU seconds that answering one action may take. Not wall time: a busy machine is no fault of an environment."""

_ORACLE_EPISODES, _ORACLE_TURNS = 5, 1000


@dataclass(frozen=True, slots=True)
class Rule:
    """One sentence of the contract."""

    name: str
    claim: str
    repair: str
    test: Callable[[Bench], str]


CONTRACT: list[Rule] = []


def _rule(*, repair: str) -> Callable[[Callable[[Bench], str]], Callable[[Bench], str]]:
    def add(test: Callable[[Bench], str]) -> Callable[[Bench], str]:
        claim = " ".join((test.__doc__ or "").split())
        CONTRACT.append(Rule(test.__name__.replace("_", " "), claim, repair, test))
        return test

    return add


@_rule(repair="the message is Gymnasium's own: about reset, step, the spaces or rendering")
def gymnasium_accepts_it(bench: Bench) -> str:
    """Gymnasium's own checker accepts the environment without a warning."""
    with bench.fresh() as env, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env_checker.check_env(env)
    # Without a registered id it can't try the render modes, and says so.
    said = [str(w.message) for w in caught if "not having a spec" not in str(w.message)]
    require(not said, "; ".join(said))
    return "no complaint"


@_rule(repair="return Reply(text, reward=…, success=…); where you give messages, the text is what they say")
def replies_are_well_formed(bench: Bench) -> str:
    """Observations are text, rewards finite and in `reward_range`; the messages say what the observation says; the
    end of an episode says whether it was a success.
    """
    low, high = bench.env_class.reward_range
    moments = [moment for script in bench.scripts for moment in script.moments]
    for turn, moment in enumerate(moments):
        first = moment in (script.moments[0] for script in bench.scripts)
        require(first or low <= moment.reward <= high, f"reward {moment.reward} is not in [{low}, {high}]")
        require(math.isfinite(moment.reward), f"reward {moment.reward}")
        require(moment.success in (True, False, None), f"success is {short(moment.success)}")
        require(moment.over or moment.success is None, f"turn {turn}: success is said before the end")
        _messages_say_it(moment)
    return f"{len(moments)} replies"


def _messages_say_it(moment: Moment) -> None:
    require(bool(moment.messages), "info['messages'] is empty")
    rest = moment.observation
    for message in moment.messages:
        require(message.role in ("system", "user", "tool"), f"a message has the role {message.role!r}")
        skipped, _, rest = rest.partition(message.content)
        require(not skipped.strip(), f"observation and messages differ from {short(skipped)} on")
    require(not rest.strip(), f"no message says {short(rest)}")


@_rule(
    repair="draw everything from self.np_random; keep clocks, ids, hash() and the order of sets out of the state"
)
def a_seed_decides_the_episode(bench: Bench) -> str:
    """The same seed and actions give the same observations, rewards and states, in a fresh environment and in one
    that has played before.
    """
    with bench.fresh() as used:
        for script in (*bench.scripts, *bench.scripts):
            with bench.fresh() as env:
                script.play(env)
            script.play(used)
    return f"{bench.scripted_turns} turns, the same four times"


@_rule(repair="get_state returns all that the future depends on; copy_state shares nothing mutable with it")
def a_fork_equals_its_parent_and_is_isolated(bench: Bench) -> str:
    """At every turn a fork has its parent's state and gives its parent's next reply. What happens in one of them
    never shows in the other, nor in another fork.
    """
    if bench.env_class.forking is Forking.NONE:
        return "not asked for: forking is none"
    rng = bench.rng("fork")
    for script in bench.scripts:
        with bench.fresh() as parent:
            script.reset(parent)
            for turn in range(len(script.actions)):
                here = parent.state_key()
                child, stray = parent.fork(2)
                with contextlib.closing(child), contextlib.closing(stray):
                    require(child.state_key() == here, f"turn {turn}: the fork is in another state")
                    stray.step(bench.choose(stray, rng))
                    require(parent.state_key() == here, f"turn {turn}: a step of a fork moved its parent")
                    script.step(child, turn)
                    require(parent.state_key() == here, f"turn {turn}: a step of a fork moved its parent")
                    script.step(parent, turn)
                    require(
                        child.state_key() == script.moments[turn + 1].state_key,
                        f"turn {turn}: a step of the parent moved a fork",
                    )
    return f"forking is {bench.env_class.forking}; {bench.scripted_turns} turns"


@_rule(repair="set_state puts back everything that get_state returns, and takes away what came later")
def a_snapshot_can_be_restored_any_time(bench: Bench) -> str:
    """A snapshot can be restored in any order and as often as one likes, where it was taken or in a sibling, and the
    episode goes on from there as it did.
    """
    if bench.env_class.forking is Forking.NONE:
        return "not asked for: forking is none"
    for script in bench.scripts:
        with bench.fresh() as env, contextlib.closing(env.sibling()) as sibling:
            script.reset(env)
            snapshots = []
            for turn in range(len(script.actions)):
                snapshots.append(env.snapshot())
                script.step(env, turn)
            for place in (env, sibling, env):
                for start in bench.rng("restore").permutation(len(snapshots)):
                    place.restore(snapshots[start])
                    for turn in range(start, len(script.actions)):
                        script.step(place, turn)
    return f"{bench.scripted_turns} snapshots, each restored three times"


@_rule(
    repair="keep state in the instance: no module globals, no class attributes, no shared caches that are written"
)
def interleaved_episodes_equal_serial_ones(bench: Bench) -> str:
    """Two episodes played turn by turn side by side go as they do one after the other."""
    one, two = bench.scripts
    with bench.fresh() as left, bench.fresh() as right:
        one.reset(left)
        two.reset(right)
        for turn in range(max(len(one.actions), len(two.actions))):
            for script, env in ((one, left), (two, right)):
                if turn < len(script.actions):
                    script.step(env, turn)
    return f"{bench.scripted_turns} turns"


@_rule(
    repair="write start and act, or start_async and act_async, and nothing that depends on which one is called"
)
def asynchronous_equals_synchronous(bench: Bench) -> str:
    """`reset_async` and `step_async` give what `reset` and `step` give, with two episodes in one event loop."""

    async def both(envs: list[TurnEnv]) -> None:
        plays = zip(bench.scripts, envs, strict=True)
        await asyncio.gather(*(script.play_async(env) for script, env in plays))

    with bench.fresh() as left, bench.fresh() as right:
        asyncio.run(both([left, right]))
    return f"{bench.scripted_turns} turns"


@_rule(repair="leave restore, fork and state_key to the base class, or compare as it does")
def a_replay_that_differs_is_caught(bench: Bench) -> str:
    """Replaying the actions leads to the same place; where a reply differs, `ForkDiverged` names the turn."""
    script = max(bench.scripts, key=lambda s: len(s.actions))
    last = len(script.actions) - 1
    if last < 1:
        return "not tried: the episode ends after one turn"
    args, kwargs = _constructor(bench)
    honest = _replaying(bench.env_class, tampered=0)
    with contextlib.closing(honest(*args, **kwargs)) as env:
        env.reset(seed=script.seed)
        for action in script.actions[:last]:
            env.step(action)
        env.fork()[0].close()
    liar = _replaying(bench.env_class, tampered=last)
    with contextlib.closing(liar(*args, **kwargs)) as env:
        env.honest = True  # its forks are not
        env.reset(seed=script.seed)
        for action in script.actions[:last]:
            env.step(action)
        try:
            env.fork()[0].close()
        except ForkDiverged as error:
            require(error.turn == last, f"turn {last} differed, ForkDiverged says turn {error.turn}")
            return f"turn {last} was tampered with, and named"
    raise Violation(f"turn {last} differed on replay, and nothing was said")


def _replaying(env_class: type[TurnEnv], *, tampered: int) -> Any:
    """A subclass that forks by replay and, unless `honest`, gives another observation at turn `tampered`."""
    hook = "act" if env_class.act_async is TurnEnv.act_async else "act_async"
    original = getattr(env_class, hook)

    def lie(env: Any, reply: Reply) -> Reply:
        env.turns_seen = getattr(env, "turns_seen", 0) + 1
        if env.honest or env.turns_seen != tampered:
            return reply
        return replace(reply, text=f"{reply.text} (differently)")

    def act(env: Any, action: str) -> Reply:
        return lie(env, original(env, action))

    async def act_async(env: Any, action: str) -> Reply:
        return lie(env, await original(env, action))

    members = {hook: act if hook == "act" else act_async, "forking": Forking.REPLAY, "honest": False}
    return type(f"Replaying{env_class.__name__}", (env_class,), members)


def _constructor(bench: Bench) -> tuple[tuple[Any, ...], dict[str, Any]]:
    with bench.fresh() as env:
        return env.arguments


@_rule(
    repair="raise errors.ConfigError (errors.unknown_name for names), which the base class does for most of it"
)
def misuse_is_refused(bench: Bench) -> str:
    """A step before the reset or after the end, an action that is no text, an unknown option of the constructor or
    of the reset: each is an error that says so, and none is ignored.
    """
    args, kwargs = _constructor(bench)
    with bench.fresh() as env:
        _refused(ConfigError, "a step before the reset", lambda: env.step("look"))
        script = bench.scripts[0]
        script.reset(env)
        _refused(ConfigError, "an action that is bytes", lambda: env.step(cast(str, b"look")))
        script.play(env)
        if script.moments[-1].over:
            _refused(ConfigError, "a step after the end", lambda: env.step("look"))
        _refused(UnknownName, "an unknown reset option", lambda: env.reset(options={"no_such_option": 1}))
    wrong = {**kwargs, "no_such_option": 1}
    _refused(UnknownName, "an unknown constructor option", lambda: bench.env_class(*args, **wrong))
    return "refused, each by its own error"


def _refused(kind: type[Exception], what: str, attempt: Callable[[], object]) -> None:
    try:
        attempt()
    except kind:
        return
    raise Violation(f"{what} was accepted; expected {kind.__name__}")


@_rule(repair="answer what can't be read with an observation that says how to write it; bound what you parse")
def bad_actions_are_answered(bench: Bench) -> str:
    """Whatever text a policy sends is answered with an observation, in good time; afterwards the environment plays
    as if it had never happened.
    """
    rng = bench.rng("bad actions")
    slowest, endings = 0.0, 0
    with bench.fresh() as env:
        again = _beginning(env, bench.seed)
        for text in (*random_texts(rng, bench.actions), *hostile_texts(rng, bench.actions)):
            started = time.process_time()
            try:
                observation, _, terminated, truncated, _ = env.step(text)
            except Exception as error:
                raise Violation(
                    f"{short(text)} raised {type(error).__name__}: {short(str(error), 200)}"
                ) from error
            took = time.process_time() - started
            require(took < PATIENCE_S, f"answering {short(text)} took {took:.1f} CPU seconds")
            observation.encode()  # raises for what no tokenizer and no file takes
            slowest = max(slowest, took)
            if terminated or truncated:
                endings += 1
                again()
        bench.scripts[0].play(env)
    return f"{2 * bench.actions} actions, {endings} endings, {slowest * 1e3:.1f} ms at most"


def _beginning(env: TurnEnv, seed: int) -> Callable[[], object]:
    """Reset `env`; the result begins the episode again, without a reset where that can be had for less."""
    env.reset(seed=seed)
    return (
        partial(env.restore, env.snapshot())
        if env.forking is Forking.EXACT
        else partial(env.reset, seed=seed)
    )


@_rule(
    repair="swap global generators in and out, silence what prints, and let no action reach the file system"
)
def the_process_is_left_alone(bench: Bench) -> str:
    """Playing prints nothing, warns of nothing, writes no file in the working directory, and neither draws from nor
    seeds the global random generators.
    """
    script = bench.scripts[0]  # recorded before anything is watched
    with _watched() as seen, bench.fresh() as env:
        script.play(env)
        again = _beginning(env, bench.seed)
        for text in CORPUS:
            if len(text) < 1000 and env.step(text)[2:4] != (False, False):
                again()
    require(not seen, "; ".join(seen))
    return "no trace"


@contextlib.contextmanager
def _watched() -> Iterator[list[str]]:
    """Collects what the block does to the process, from a working directory and generators of its own."""
    seen: list[str] = []
    printed, before, after = io.StringIO(), GlobalRandom.seeded(0), GlobalRandom.seeded(0)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        isolated(after),
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        warnings.simplefilter("always")
        yield seen
        written = sorted(os.listdir())
    seen += [f"it prints {short(printed.getvalue())}"] if printed.getvalue() else []
    seen += [f"it warns: {warning.message}" for warning in caught]
    seen += [f"it writes the file {name}" for name in written]
    if state_digest(before) != state_digest(after):
        seen.append("it draws from or seeds the global random generators")


@_rule(
    repair="an optimal policy that never wins points at the policy, the verifier or a turn limit that is too short"
)
def its_own_optimal_policy_succeeds(bench: Bench) -> str:
    """Where an environment writes down an optimal policy, that policy reaches success."""
    if not hasattr(bench.env_class, "optimal_action"):
        return "not asked for: it has no optimal_action"
    successes = 0
    with bench.fresh() as env:
        for episode in range(_ORACLE_EPISODES):
            env.reset(seed=bench.seed + episode)
            for _ in range(_ORACLE_TURNS):
                *_, terminated, truncated, info = env.step(cast(Scripted, env).optimal_action())
                if terminated or truncated:
                    successes += info["success"] is True
                    break
    require(successes > 0, f"no success in {_ORACLE_EPISODES} episodes")
    return f"{successes} of {_ORACLE_EPISODES} episodes"


@_rule(repair="close releases what is held and forgets it, so that a second call finds nothing to do")
def it_can_be_closed_twice(bench: Bench) -> str:
    """Closing is safe before a reset, in an episode, and again; a closed environment refuses to step."""
    bench.factory().close()
    with bench.fresh() as env:
        env.reset(seed=bench.seed)
        env.close()
        env.close()
        _refused(ConfigError, "a step after close", lambda: env.step("look"))
    return "closed"
