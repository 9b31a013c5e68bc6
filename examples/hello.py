"""Play one game, and fork it in the middle: python examples/hello.py"""

import gymnasium as gym
import numpy as np

import turngym  # noqa: F401 - registers the environments

env = gym.make("turngym/Corridor-v0")
observation, info = env.reset(seed=1)
print(observation)

game = env.unwrapped  # Gymnasium's wrappers hide what it does not know: forks, and the written optimal policy
for _ in range(3):
    observation, reward, terminated, truncated, info = env.step(game.optimal_action())
    print(f"> {observation}")

[fork] = game.fork()  # a second game in the same state; neither sees what the other does from here
rng = np.random.default_rng(0)
for name, branch in (("optimal", game), ("random", fork)):
    over = False
    while not over:
        action = branch.optimal_action() if name == "optimal" else branch.random_action(rng)
        observation, reward, terminated, truncated, info = branch.step(action)
        print(f"{name}> {observation}")
        over = terminated or truncated
    print(f"{name}: success {info['success']}, reward {reward}")
env.close()
