"""Small decision problems whose policy gradient is known exactly.

The one idea: in a finite problem whose states never come back, values follow from the last state to the first and visits
from the first to the last, so Q, V and the gradient of a softmax table are exact, and whatever a credit rule estimates
can be held against them. A turn limit or a clock is part of the state here; what the policy sees is its *row*, which
several states may share, so hidden truths and places that one comes back to are in reach as well.

Each problem plants one difficulty of long episodes: see `PROBLEMS`. Returns lie in [0, 1].

The policy gradient theorem: Sutton et al. (2000), "Policy gradient methods for reinforcement learning with function
approximation".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from turngym.errors import ConfigError

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

Move = tuple[float, Mapping[str, float]]
"""What an action pays, and where it leads with which chance; what is missing from 1 ends the episode."""


@dataclass(frozen=True, kw_only=True)
class Mdp:
    """S states in an order in which no move leads back, R rows of a softmax table, A actions."""

    name: str
    about: str
    "what it plants, in a few words"
    states: tuple[str, ...]
    "`(S,)` names; the first is where every episode starts"
    rows: tuple[str, ...]
    "`(R,)` names: what the policy can tell apart"
    actions: tuple[str, ...]
    "`(A,)` names"
    row: IntArray
    "`(S,)` the row that the policy reads in each state"
    key: IntArray
    "`(S,)` number behind `state_key`: states that an environment would call the same"
    chance: Array
    "`(S, A, S + 1)` of each next state; the last column is the end"
    reward: Array
    "`(S, A)`"
    logits: Array
    "`(R, A)` of the policy; −inf where there is no such action"
    guess: Array
    "`(S,)` what a critic that knows little says of each state"
    fork: Array
    "`(S,)` chance to go on twice from a state, tossed when it is reached"

    @cached_property
    def policy(self) -> Array:
        """`(S, A)` chance of each action in each state."""
        odds = np.exp(self.logits - self.logits.max(1, keepdims=True))
        chances: Array = (odds / odds.sum(1, keepdims=True))[self.row]
        return chances

    def with_logits(self, logits: Array) -> Mdp:
        """The same problem under another policy."""
        return replace(self, logits=logits)

    @cached_property
    def scores(self) -> Array:
        """`(S, A, R · A)` ∇ log π(a|s), flat over the table; 0 for actions that do not exist."""
        states, actions = self.reward.shape
        out = np.zeros((states, actions, *self.logits.shape))
        own = np.eye(actions)[None] - self.policy[:, None, :]
        out[np.arange(states), :, self.row] = np.where(self.policy[:, :, None] > 0, own, 0.0)
        return out.reshape(states, actions, -1)

    @property
    def components(self) -> list[str]:
        """`(R · A,)` names of the entries of a gradient."""
        return [f"{row}: {action}" for row in self.rows for action in self.actions]


@dataclass(frozen=True, kw_only=True)
class Exact:
    """What dynamic programming knows of a policy in a problem."""

    q: Array
    "`(S, A)` expected return from a state on, after an action"
    v: Array
    "`(S,)`"
    advantage: Array
    "`(S, A)` q − v"
    visits: Array
    "`(S,)` chance that an episode comes through a state"
    gradient: Array
    "`(R · A,)` of the expected return by the logits: Σ_s visits · Σ_a π · advantage · ∇ log π"

    @property
    def value(self) -> float:
        """Expected return of an episode."""
        return float(self.v[0])


def exact(mdp: Mdp) -> Exact:
    """Values from the last state to the first, visits from the first to the last, and the gradient that they make."""
    count, policy = len(mdp.states), mdp.policy
    q, v, visits = np.zeros(mdp.reward.shape), np.zeros(count + 1), np.zeros(count + 1)
    for s in reversed(range(count)):
        q[s] = mdp.reward[s] + mdp.chance[s] @ v
        v[s] = policy[s] @ q[s]
    visits[0] = 1.0
    for s in range(count):
        visits += visits[s] * (policy[s] @ mdp.chance[s])
    v, visits = v[:-1], visits[:-1]
    advantage = q - v[:, None]
    weight = visits[:, None] * policy * advantage
    gradient = np.einsum("sa,sac->c", weight, mdp.scores)
    return Exact(q=q, v=v, advantage=advantage, visits=visits, gradient=gradient)


def build(
    name: str,
    about: str,
    moves: Mapping[str, Sequence[Move]],
    actions: Sequence[str],
    *,
    rows: Mapping[str, str] | None = None,
    keys: Mapping[str, str] | None = None,
    logits: Mapping[str, Sequence[float]] | None = None,
    forks: Mapping[str, float],
    seed: int = 0,
) -> Mdp:
    """A problem from names.

    Args:
        name: of the problem.
        about: what it plants.
        moves: for each state, first to last, the moves of its actions; a state may have fewer actions than `actions`.
        actions: names of the actions.
        rows: the row of states that do not have one of their own.
        keys: likewise what `state_key` calls a state.
        logits: of some rows; the others are drawn from a normal distribution.
        forks: chances to go on twice.
        seed: of the logits and of the critic's guesses.

    Raises:
        ConfigError: for a move that leads back, or chances that sum to more than 1.
    """
    states = list(moves)
    place = {state: i for i, state in enumerate(states)}
    seen = [(rows or {}).get(state, state) for state in states]
    row_names = tuple(dict.fromkeys(seen))
    named = [(keys or {}).get(state, state) for state in states]
    key_names = list(dict.fromkeys(named))
    chance = np.zeros((len(states), len(actions), len(states) + 1))
    reward, exists = np.zeros(chance.shape[:2]), np.zeros((len(row_names), len(actions)), np.bool_)
    for state, choices in moves.items():
        s = place[state]
        for a, (pays, leads) in enumerate(choices):
            reward[s, a], exists[row_names.index(seen[s]), a] = pays, True
            for target, p in leads.items():
                if place[target] <= s:
                    raise ConfigError(f"{name}: a move leads back from {state!r} to {target!r}")
                chance[s, a, place[target]] += p
            chance[s, a, -1] = 1 - chance[s, a, :-1].sum()
    if chance.min() < -1e-12:
        raise ConfigError(f"{name}: the chances of some move sum to more than 1")
    rng = np.random.default_rng(seed)
    table = rng.normal(0.0, 0.6, exists.shape)
    for row, values in (logits or {}).items():
        table[row_names.index(row), : len(values)] = values
    return Mdp(
        name=name,
        about=about,
        states=tuple(states),
        rows=row_names,
        actions=tuple(actions),
        row=np.array([row_names.index(row) for row in seen]),
        key=np.array([key_names.index(key) for key in named]),
        chance=np.clip(chance, 0.0, 1.0),
        reward=reward,
        logits=np.where(exists, table, -np.inf),
        guess=rng.uniform(0.0, 1.0, len(states)),
        fork=np.array([forks.get(state, 0.0) for state in states]),
    )


# ---------------------------------------------------------------------- the problems


def bandit() -> Mdp:
    """One turn, three arms."""
    return build(
        "bandit",
        "one turn",
        {"arms": [(0.2, {}), (0.5, {}), (0.9, {})]},
        ("left", "middle", "right"),
        forks={},
    )


def stopping(turns: int = 5) -> Mdp:
    """Each turn, take what is on the table or go on: the policy decides how long an episode is."""
    pays = np.resize([0.5, 0.2, 0.7, 0.1, 0.8], turns)
    moves = {
        f"turn {t}": [(float(pays[t]), {}), (0.03, {f"turn {t + 1}": 1.0} if t + 1 < turns else {})]
        for t in range(turns)
    }
    return build(
        "stopping",
        "the policy may stop when it likes",
        moves,
        ("take", "go on"),
        forks={"turn 1": 0.6},
        seed=1,
    )


def traps(turns: int = 3) -> Mdp:
    """One wrong action loses the game, and nothing that the policy sees says so."""
    moves: dict[str, list[Move]] = {}
    for t in range(turns):
        after = t + 1 < turns
        if t:
            onward: Mapping[str, float] = {f"lost {t + 1}": 1.0} if after else {}
            moves[f"lost {t}"] = [(0.0, onward), (0.0, onward)]
        good = (0.0, {f"open {t + 1}": 1.0}) if after else (1.0, {})
        moves[f"open {t}"] = [good, (0.0, {f"lost {t + 1}": 1.0} if after else {})]
    rows = {f"{kind} {t}": f"turn {t}" for kind in ("open", "lost") for t in range(turns)}
    return build(
        "traps",
        "an error that can't be repaired, unseen",
        moves,
        ("safe", "snare"),
        rows=rows,
        logits={f"turn {t}": (0.8 - 0.4 * t, 0.0) for t in range(turns)},
        forks={"open 1": 0.2, "lost 1": 0.2},
        seed=2,
    )


def sparse(turns: int = 10, decisions: Sequence[int] = (1, 4, 8), needed: int = 2) -> Mdp:
    """Many turns, few of which matter, and one reward at the very end."""
    moves: dict[str, list[Move]] = {}
    for t in range(turns):
        for right in range(sum(d < t for d in decisions) + 1):
            last = t + 1 == turns

            def to(now: int, t: int = t, last: bool = last) -> Move:
                return (float(now >= needed), {}) if last else (0.0, {f"turn {t + 1}, {now} right": 1.0})

            moves[f"turn {t}, {right} right"] = [to(right + 1), to(right)] if t in decisions else [to(right)]
    return build(
        "sparse",
        f"{turns} turns, one reward at the end",
        moves,
        ("right", "wrong"),
        rows={state: state.split(",")[0] for state in moves},
        forks={f"turn 3, {right} right": 0.4 for right in range(2)},
        seed=3,
    )


def noisy_tool(right: float = 0.75, asks: int = 1) -> Mdp:
    """A tool that is wrong now and then, a truth that stays hidden, and a price for asking again."""
    moves: dict[str, list[Move]] = {
        "nothing heard": [
            (0.5, {}),
            (0.5, {}),
            (0.0, {f"{t}, heard {h}": (right if t == h else 1 - right) / 2 for t in "AB" for h in "AB"}),
        ]
    }
    layer = [(t, h) for t in "AB" for h in "AB"]
    for asked in range(1, asks + 1):
        price = 0.1 * asked
        for truth, heard in dict.fromkeys((t, "".join(sorted(h))) for t, h in layer):
            again = {
                f"{truth}, heard {''.join(sorted(heard + new))}": right if new == truth else 1 - right
                for new in "AB"
            }
            moves[f"{truth}, heard {heard}"] = [
                ((1 - price) * (truth == "A"), {}),
                ((1 - price) * (truth == "B"), {}),
                (0.0, again if asked < asks else {}),
            ]
        layer = [(t, "".join(sorted(h + new))) for t, h in layer for new in "AB"]
    return build(
        "noisy tool",
        "a tool that errs, a hidden truth",
        moves,
        ("say A", "say B", "ask"),
        rows={state: state.split(", ")[-1] for state in moves},
        logits={"nothing heard": (-0.5, -0.5, 1.0)},
        forks={"A, heard A": 0.2, "B, heard A": 0.2},
        seed=4,
    )


def corridor(places: int = 3, turns: int = 4) -> Mdp:
    """A walk that comes back to where it was, until the goal is reached or the time is up."""
    moves: dict[str, list[Move]] = {}
    for t in range(turns):
        for place in range(places):
            if t == 0 and place:
                continue

            def to(where: int, t: int = t) -> Move:
                if where == places:
                    return (1.0, {})
                return (0.0, {f"place {where} at {t + 1}": 1.0} if t + 1 < turns else {})

            moves[f"place {place} at {t}"] = [to(place + 1), to(max(place - 1, 0))]
    place_of = {state: state.split(" at ")[0] for state in moves}
    return build(
        "corridor",
        "states that come back",
        moves,
        ("forward", "back"),
        rows=place_of,
        keys=place_of,
        forks={"place 1 at 1": 0.4},
        seed=5,
    )


def random_mdp(seed: int = 6, *, layers: int = 3, width: int = 3, actions: int = 2, leads_to: int = 1) -> Mdp:
    """A problem that nobody thought of: `layers` turns at most, `width` states in each but the first.

    Every move leads to `leads_to` states with random chances and may end the episode; it pays up to 1/`layers`.
    """
    rng = np.random.default_rng(seed)
    moves: dict[str, list[Move]] = {}
    for layer in range(layers):
        for i in range(width if layer else 1):
            moves[f"state {layer}.{i}"] = [
                (float(rng.uniform(0, 1 / layers)), _leads(rng, layer + 1, layers, width, leads_to))
                for _ in range(actions)
            ]
    return build(
        "random",
        "drawn at random",
        moves,
        tuple(f"action {a}" for a in range(actions)),
        forks={"state 1.0": 0.4},
        seed=seed,
    )


def _leads(
    rng: np.random.Generator, layer: int, layers: int, width: int, leads_to: int
) -> Mapping[str, float]:
    if layer == layers:
        return {}
    chances = rng.dirichlet(np.ones(leads_to + 1))[:-1]
    return {
        f"state {layer}.{i}": float(p)
        for i, p in zip(rng.choice(width, leads_to, replace=False), chances, strict=True)
    }


PROBLEMS: Mapping[str, Mdp] = MappingProxyType(
    {
        mdp.name: mdp
        for mdp in (bandit(), stopping(), traps(), sparse(), noisy_tool(), corridor(), random_mdp())
    }
)
"""The problems of the lab by name."""
