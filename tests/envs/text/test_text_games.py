"""What all of turngym's own games promise: folds, seeds, forks, exact `doomed`, answers to malformed calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.envs.state import state_digest
from turngym.envs.text.corridor import Corridor
from turngym.envs.text.game import TextGame
from turngym.envs.text.guess_number import GuessNumber
from turngym.envs.text.ledger import Ledger
from turngym.envs.text.mastermind import Mastermind
from turngym.errors import ConfigError, UnknownName
from turngym.toolcalls import format_call, parse_calls
from turngym.types import ToolCall

Game = TextGame[Any]
GAMES: dict[str, Callable[..., Game]] = {
    "corridor": Corridor,
    "guess": GuessNumber,
    "guess_paid": lambda **kw: GuessNumber(turn_reward=0.3, **kw),
    "mastermind": Mastermind,
    "mastermind_paid": lambda **kw: Mastermind(turn_reward=0.3, **kw),
    "ledger": lambda **kw: Ledger(entries=6, accounts=2, **kw),
    "ledger_long": Ledger,
}
every_game = pytest.mark.parametrize("make", GAMES.values(), ids=GAMES.keys())

MALFORMED = (
    "",
    "hello",
    "<tool_call>{</tool_call>",
    '<tool_call>{"name": "fly", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "guess", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "go", "arguments": {"direction": "up"}}</tool_call>',
    '<tool_call>{"name": "guess", "arguments": {"number": true, "code": []}}</tool_call>',
    '<tool_call>{"name": "next"}</tool_call><tool_call>{"name": "next"}</tool_call>',
)
MOVES = st.lists(st.tuples(st.sampled_from(["best", "random", "bad"]), st.integers(0, 2**32)), max_size=12)
SEEDS = st.integers(0, 2**31)


def choose(env: Game, move: tuple[str, int]) -> str:
    """The action text of a drawn move."""
    kind, number = move
    if kind == "best":
        return env.optimal_action()
    return (
        env.random_action(np.random.default_rng(number))
        if kind == "random"
        else MALFORMED[number % len(MALFORMED)]
    )


def play_optimally(env: Game, seed: int) -> tuple[bool, float, int]:
    """(success, sum of rewards, turns) of one episode of the written policy."""
    env.reset(seed=seed)
    total, turns, over = 0.0, 0, False
    while not over:
        _, reward, terminated, truncated, info = env.step(env.optimal_action())
        total, turns, over = total + reward, turns + 1, terminated or truncated
    return info["success"], total, turns


@every_game
@pytest.mark.parametrize("fold", ["train", "test"])
def test_the_written_policy_wins_every_instance(make: Callable[..., Game], fold: str) -> None:
    env = make(fold=fold)
    results = [play_optimally(env, seed) for seed in range(200)]
    assert all(success for success, _, _ in results)
    assert all(total == pytest.approx(1.0) for _, total, _ in results)


@every_game
def test_train_and_test_never_share_an_instance(make: Callable[..., Game]) -> None:
    seen: dict[str, set[str]] = {}
    for fold in ("train", "test"):
        env = make(fold=fold)
        seen[fold] = set()
        for seed in range(300 if isinstance(env, Ledger) and env.entries > 6 else 2000):
            env.reset(seed=seed)
            seen[fold].add(state_digest(env.instance(env.get_state())))
    assert not seen["train"] & seen["test"]
    assert len(seen["train"]) > 1
    assert len(seen["test"]) > 1


@every_game
@given(seed=SEEDS, moves=MOVES)
@settings(max_examples=25, deadline=None)
def test_the_same_seed_and_actions_give_the_same_episode(
    make: Callable[..., Game], seed: int, moves: list[Any]
) -> None:
    env, other = make(), make()
    assert env.reset(seed=seed) == other.reset(seed=seed)
    for move in moves:
        action = choose(env, move)
        step = env.step(action)
        assert step == other.step(action)
        assert env.state_key() == other.state_key()
        if step[2] or step[3]:
            break


@every_game
@given(seed=SEEDS, before=MOVES, after=MOVES)
@settings(max_examples=25, deadline=None)
def test_a_fork_equals_its_parent_and_is_isolated_from_it(
    make: Callable[..., Game], seed: int, before: list[Any], after: list[Any]
) -> None:
    env = make()
    env.reset(seed=seed)
    for move in before:
        twin_point = env.snapshot()
        *_, terminated, truncated, _ = env.step(choose(env, move))
        if terminated or truncated:
            env.restore(twin_point)  # fork a running episode
            break
    key = env.state_key()
    twin, stray = env.fork(2)
    assert twin.state_key() == stray.state_key() == key
    stray.step("not a call")
    assert stray.state_key() != key
    assert env.state_key() == twin.state_key() == key
    for move in after:
        action = choose(env, move)
        step = env.step(action)
        assert step == twin.step(action)
        assert env.state_key() == twin.state_key()
        if step[2] or step[3]:
            break


SMALL: dict[str, tuple[Callable[[], Game], list[str]]] = {
    "corridor": (
        lambda: Corridor(rooms=4, one_way=1, decoys=1, slack=2),
        [
            *(format_call(ToolCall("go", {"direction": d})) for d in ("east", "west")),
            *(format_call(ToolCall("take", {"key": c})) for c in ("red", "blue", "green", "gold")),
            format_call(ToolCall("open", {})),
        ],
    ),
    "guess": (
        lambda: GuessNumber(size=5, low_max=3),
        [format_call(ToolCall("guess", {"number": n})) for n in range(9)],
    ),
    "mastermind": (
        lambda: Mastermind(pegs=2, colours=2, palette=3, slack=1),
        [
            format_call(ToolCall("guess", {"code": f"{a} {b}"}))
            for a in ("red", "blue", "green")
            for b in ("red", "blue", "green")
        ],
    ),
    "ledger": (
        lambda: Ledger(entries=5, accounts=2, page=2, slack=2),
        [
            format_call(ToolCall("next", {})),
            *(format_call(ToolCall("answer", {"amount": n})) for n in range(100)),
        ],
    ),
}


def can_win(env: Game, actions: list[str], known: dict[str, bool]) -> bool:
    """Whether some sequence of `actions` wins from here, by trying all of them on the real game."""
    here = env.snapshot()
    if here.state_key not in known:
        known[here.state_key] = False
        for action in actions:
            *_, terminated, truncated, info = env.step(action)
            won = info["success"] if terminated or truncated else can_win(env, actions, known)
            env.restore(here)
            if won:
                known[here.state_key] = True
                break
    return known[here.state_key]


@pytest.mark.parametrize("name", SMALL)
@given(seed=SEEDS, moves=MOVES)
@settings(max_examples=30, deadline=None)
def test_doomed_is_what_exhaustive_search_finds_and_never_lifts(
    name: str, seed: int, moves: list[Any]
) -> None:
    make, actions = SMALL[name]
    env, known = make(), dict[str, bool]()
    _, info = env.reset(seed=seed)
    assert not info["doomed"], "an instance must be solvable"
    assert can_win(env, [*actions, "not a call"], known)
    was_doomed = False
    for move in moves:
        *_, terminated, truncated, info = env.step(choose(env, move))
        if terminated or truncated:
            assert info["doomed"] != info["success"]
            break
        assert info["doomed"] != can_win(env, [*actions, "not a call"], known)
        assert info["doomed"] or not was_doomed
        was_doomed = info["doomed"]


@every_game
@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_calls_are_answered_and_cost_a_turn(make: Callable[..., Game], text: str) -> None:
    env = make()
    env.reset(seed=3)
    limit = env.turn_limit(env.get_state())
    for turn in range(1, limit + 1):
        answer, reward, terminated, truncated, info = env.step(text)
        assert answer.startswith("Error: ")
        assert (reward, terminated, truncated) == (0.0, False, turn == limit)
        assert env.get_state().turn == turn
    assert info["success"] is False
    assert info["doomed"] is True


@every_game
@given(seed=SEEDS, moves=MOVES)
@settings(max_examples=40, deadline=None)
def test_rewards_of_an_episode_sum_within_the_reward_range(
    make: Callable[..., Game], seed: int, moves: list[Any]
) -> None:
    env = make()
    env.reset(seed=seed)
    total = 0.0
    for move in moves:
        _, reward, terminated, truncated, info = env.step(choose(env, move))
        total += reward
        if terminated or truncated:
            assert not info["success"] or total == pytest.approx(1.0)
            break
    low, high = env.reward_range
    assert low <= total <= high + 1e-9


@every_game
def test_the_rules_are_short_and_their_example_call_is_well_formed(make: Callable[..., Game]) -> None:
    env = make()
    text, info = env.reset(seed=5)
    system, user = info["messages"]
    assert text == f"{system.content}\n\n{user.content}"
    assert len(re.findall(r"\w+", system.content)) <= 70
    example = re.search(r"<tool_call>.*</tool_call>", system.content)
    assert example is not None
    assert not env.step(example[0])[0].startswith("Error")


@every_game
def test_every_optimal_and_random_action_is_one_call_that_the_game_takes(make: Callable[..., Game]) -> None:
    env, rng = make(), np.random.default_rng(0)
    for seed in range(20):
        env.reset(seed=seed)
        over = False
        while not over:
            action = env.random_action(rng) if rng.integers(2) else env.optimal_action()
            calls = parse_calls(action)
            assert isinstance(calls, list)
            assert [set(env.tools[c.name]) for c in calls] == [set(c.arguments) for c in calls]
            *_, terminated, truncated, _ = env.step(action)
            over = terminated or truncated


@every_game
def test_the_copy_of_a_state_shares_nothing_that_a_call_can_change(make: Callable[..., Game]) -> None:
    env = make()
    env.reset(seed=1)
    before = env.snapshot()
    digest = state_digest(before.state)
    play_on = 0
    while play_on < 3:
        *_, terminated, truncated, _ = env.step(env.optimal_action())
        play_on += 1
        if terminated or truncated:
            break
    assert state_digest(before.state) == digest


def test_an_unknown_fold_option_or_knob_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'train'"):
        Corridor(fold="trian")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="Did you mean 'slack'"):
        GuessNumber(slak=2)  # type: ignore[call-arg]
    with pytest.raises(UnknownName, match="reset option of Ledger 'level'"):
        Ledger().reset(options={"level": 3})


@pytest.mark.parametrize(
    ("game", "knobs"),
    [
        (Corridor, {"rooms": 2}),
        (Corridor, {"rooms": 5, "one_way": 5}),
        (Corridor, {"decoys": 4}),
        (Corridor, {"slack": -1}),
        (GuessNumber, {"size": 1}),
        (GuessNumber, {"low_max": 0}),
        (GuessNumber, {"turn_reward": 1.5}),
        (Mastermind, {"colours": 5, "palette": 4}),
        (Mastermind, {"pegs": 5, "colours": 6}),
        (Mastermind, {"slack": -1}),
        (Ledger, {"accounts": 9}),
        (Ledger, {"page": 0}),
        (Ledger, {"noise": 7}),
    ],
)
def test_a_knob_out_of_range_is_refused_at_the_start(game: type[Game], knobs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{game.__name__} needs"):
        game(**knobs)


def test_a_fold_without_instances_is_an_error_and_not_an_endless_loop() -> None:
    # The only two instances of this size both hash into the train fold.
    GuessNumber(size=2, low_max=1).reset(seed=0)
    with pytest.raises(ConfigError, match="in the test fold"):
        GuessNumber(size=2, low_max=1, fold="test").reset(seed=0)
