"""Gymnasium's toy text in words: the same dynamics, the words, what a wasted turn costs, the optimal policies."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from turngym.envs.adapters.toy_text import Blackjack, CliffWalking, FrozenLake, Taxi, ToyText, action_values
from turngym.errors import ConfigError, MissingDependency, UnknownName


@pytest.mark.parametrize("cls", [FrozenLake, Taxi, CliffWalking, Blackjack])
@pytest.mark.parametrize("seed", range(5))
def test_dynamics_are_gymnasiums_own(cls: type[ToyText], seed: int) -> None:
    ours = cls()  # type: ignore[call-arg]
    theirs = gymnasium.make(cls.native_id).unwrapped
    ours.reset(seed=seed)
    theirs.reset(seed=seed)
    rng = np.random.default_rng(seed)
    over = False
    for _ in range(30):
        action = int(rng.integers(len(cls.words)))
        _, reward, terminated, _, _ = theirs.step(action)
        _, our_reward, over, _, _ = ours.step(cls.words[action])
        assert (our_reward, over) == (reward, terminated)
        if over:
            break


def test_a_walk_over_the_ice_by_hand() -> None:
    # SFFF
    # FHFH
    # FFFH   down, down, right, right, down, right leads from S past the holes to G
    # HFFG
    env = FrozenLake(is_slippery=False)
    text, info = env.reset(seed=0)
    assert text.endswith("@FFF\nFHFH\nFFFH\nHFFG\nRow 0, column 0.")
    assert [m.role for m in info["messages"]] == ["system", "user"]
    for word in ("down", "down", "right", "right", "down"):
        text, reward, over, _, _ = env.step(word)
        assert (reward, over) == (0, False)
    assert text == "SFFF\nFHFH\nFFFH\nHF@G\nRow 3, column 2."
    text, reward, over, _, info = env.step("right")
    assert (reward, over, info["success"]) == (1, True, True)
    assert text.endswith("You reached the goal.")


def test_a_hole_ends_the_walk_without_success() -> None:
    env = FrozenLake(is_slippery=False)
    env.reset(seed=0)
    env.step("right")
    text, reward, over, _, info = env.step("down")
    assert (reward, over, info["success"]) == (0, True, False)
    assert text.endswith("You fell into a hole.")


@pytest.mark.parametrize(
    "said",
    ["down", " Down.\n", "[down]", "'DOWN'", '{"name": "down", "arguments": {}}'],
)
def test_a_word_may_be_said_in_several_ways(said: str) -> None:
    env = FrozenLake(is_slippery=False)
    env.reset(seed=0)
    assert env.step(said)[0].endswith("Row 1, column 0.")


def test_a_tool_call_may_say_the_word() -> None:
    env = FrozenLake(is_slippery=False)
    env.reset(seed=0)
    said = '<tool_call>{"name": "act", "arguments": {"action": "down"}}</tool_call>'
    assert env.step(said)[0].endswith("Row 1, column 0.")


@pytest.mark.parametrize(("cls", "cost"), [(FrozenLake, 0), (Blackjack, 0), (Taxi, -1), (CliffWalking, -1)])
def test_nonsense_costs_a_turn_and_changes_nothing(cls: type[ToyText], cost: float) -> None:
    env = cls(max_turns=2)  # type: ignore[call-arg]
    env.reset(seed=0)
    before = env.view()
    text, reward, terminated, truncated, _ = env.step("sideways")
    assert text.startswith("That is no action here. Answer with one word: ")
    assert (reward, terminated, truncated) == (cost, False, False)
    assert env.view() == before
    *_, truncated, info = env.step("")
    assert truncated
    assert info["success"] is False


def test_the_cliff_costs_100_and_leads_back_to_the_start() -> None:
    env = CliffWalking()
    env.reset(seed=0)
    text, reward, over, _, _ = env.step("right")
    assert (reward, over) == (-100, False)
    assert text.endswith("Row 3, column 0. You fell off the cliff.")


def test_the_taxi_says_what_is_not_possible_here() -> None:
    env = Taxi()
    env.reset(seed=1)
    text, reward, *_ = env.step("dropoff")
    assert reward == -10
    assert text.endswith("Not possible here.")


def test_the_dealers_hidden_card_stays_hidden_until_the_end() -> None:
    env = Blackjack()
    first, _ = env.reset(seed=3)
    env._native.dealer = [2, 9]
    env._native.player = [10, 10]
    assert env.view() == "Your cards: 10, 10 (sum 20). Dealer shows: 2."
    text, reward, over, _, info = env.step("stick")
    assert "Dealer's cards: 2, 9" in text
    assert over
    assert info["success"] is (reward > 0)
    assert "Dealer's cards" not in first


@pytest.mark.parametrize(
    ("player", "dealer", "word"),
    [
        # Sutton and Barto, Figure 5.2. Without a usable ace: stick from 17, from 13 against 2 to 6, on 12 against 4 to 6.
        ([10, 7], 10, "stick"),
        ([10, 6], 10, "hit"),
        ([10, 3], 2, "stick"),
        ([10, 2], 3, "hit"),
        ([10, 2], 4, "stick"),
        ([10, 2], 1, "hit"),
        # With one: stick from 19, on 18 unless the dealer shows 9, 10 or an ace.
        ([1, 8], 10, "stick"),
        ([1, 7], 9, "hit"),
        ([1, 7], 1, "hit"),
        ([1, 7], 8, "stick"),
        ([1, 6], 2, "hit"),
    ],
)
def test_the_optimal_hand_of_blackjack(player: list[int], dealer: int, word: str) -> None:
    env = Blackjack()
    env.reset(seed=0)
    env._native.player, env._native.dealer = player, [dealer, 5]
    assert env.optimal_action() == word


def test_action_values_of_a_chain_by_hand() -> None:
    # State 0: action 0 ends with reward 1; action 1 stays. State 1 is the end.
    # Q(0, 0) = 1, Q(0, 1) = 0.5 · max Q(0) = 0.5 with a discount of one half.
    table = {0: {0: [(1.0, 1, 1.0, True)], 1: [(1.0, 0, 0.0, False)]}, 1: {0: [(1.0, 1, 0.0, True)], 1: []}}
    values = action_values(table, discount=0.5)  # type: ignore[arg-type]
    assert values == pytest.approx(np.array([[1.0, 0.5], [0.0, 0.0]]))


def test_optimal_policies_reach_what_gymnasium_says_they_do() -> None:
    # Gymnasium gives 0.74 as the optimum of FrozenLake-v1 within 100 turns; 300 episodes have a standard error of 0.025.
    env = FrozenLake()
    wins = 0
    for seed in range(300):
        env.reset(seed=seed)
        over = False
        while not over:
            *_, terminated, truncated, info = env.step(env.optimal_action())
            over = terminated or truncated
        wins += info["success"]
    assert wins / 300 == pytest.approx(0.74, abs=0.08)


def test_the_shortest_walk_along_the_cliff_has_13_turns() -> None:
    env = CliffWalking()
    env.reset(seed=0)
    rewards = []
    over = False
    while not over:
        _, reward, over, _, info = env.step(env.optimal_action())
        rewards.append(reward)
    assert (sum(rewards), info["success"]) == (-13, True)


def test_every_state_is_a_copy_of_one_prototype_and_none_writes_to_it() -> None:
    one, two = Taxi(), Taxi()
    one.reset(seed=1)
    two.reset(seed=2)
    before = two.state_key()
    for _ in range(5):
        one.step(one.optimal_action())
    assert two.state_key() == before
    assert one._native.P is two._native.P


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(UnknownName, match="map of FrozenLake '4x5'"):
        FrozenLake(map_name="4x5")
    with pytest.raises(ConfigError, match="max_turns must be at least 1"):
        Taxi(max_turns=0)
    with pytest.raises(UnknownName, match="reset option"):
        Taxi().reset(options={"easy": True})


def test_a_gymnasium_that_is_too_old_says_how_to_get_a_newer_one() -> None:
    class Later(Taxi):
        native_id = "Taxi-v99"

    with pytest.raises(MissingDependency, match="pip install -U gymnasium"):
        Later()
