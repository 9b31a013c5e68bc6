"""The whole algorithm in one file: tree rollouts over live forks, turn-level credit, one policy-gradient step.

No loop, engine, credit rule or learner of turngym is used here, only its environments and its small model. So
everything that happens is on this page, about as slowly as possible; `turngym train demo` does the same, batched.

    python examples/whole_algorithm.py [UPDATES]

One update: for each of a few tasks, play some episodes; at each decision point toss a coin, and where it shows heads fork
the live environment and play on from there as well. An action's advantage is the mean return below it minus the mean
return below its siblings at the nearest fork above it (leave-one-out), weighted so that the gradient stays unbiased.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from turngym.agents.policies.loading import SPROUT
from turngym.envs.text.corridor import Corridor

TASKS, ROOTS, COIN, MAX_TOKENS = 8, 4, 0.15, 24


# ---------------------------------------------------------------------- the record: a tree of actions


@dataclass
class Action:
    """One sampled action: the ids before it, its own ids, what followed."""

    context: list[int]
    ids: list[int]
    reward: float = 0.0
    children: list[Action] = field(default_factory=list)

    def value(self) -> float:
        """Return from here on: own reward plus the mean over the children."""
        below = [child.value() for child in self.children]
        return self.reward + (sum(below) / len(below) if below else 0.0)


# ---------------------------------------------------------------------- the policy


class Actor:
    """Samples actions one by one and scores them again for training."""

    def __init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(SPROUT)
        self.model = AutoModelForCausalLM.from_pretrained(SPROUT, dtype=torch.float32)
        self.end = self.tokenizer.eos_token_id
        known = inspect.signature(self.model.forward).parameters
        self.cache_argument = "cache" if "cache" in known else "past_key_values"  # its older name
        self.dice = torch.Generator().manual_seed(0)

    def open(self, messages: list[dict[str, str]]) -> list[int]:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def reply(self, text: str) -> list[int]:
        """What comes between two actions. Encoded on its own: nothing that was sampled is ever encoded again."""
        return self.tokenizer.encode(
            f"\n<|im_start|>tool\n{text}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False
        )

    @torch.no_grad()
    def sample(self, context: list[int]) -> list[int]:
        ids, fed, cached = [], torch.tensor([context]), {self.cache_argument: DynamicCache()}
        while len(ids) < MAX_TOKENS and (not ids or ids[-1] != self.end):
            out = self.model(input_ids=fed, use_cache=True, **cached)
            chances = torch.softmax(out.logits[0, -1], -1)
            ids.append(int(torch.multinomial(chances, 1, generator=self.dice)))
            fed = torch.tensor([[ids[-1]]])
        return ids if ids[-1] == self.end else [*ids, self.end]

    def text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids[:-1])

    def logprob(self, action: Action) -> torch.Tensor:
        """Sum of the log-probs of the action's tokens, with a gradient."""
        ids = torch.tensor([action.context + action.ids])
        logits = self.model(input_ids=ids).logits[0, len(action.context) - 1 : -1]
        return torch.log_softmax(logits, -1).gather(1, ids[0, len(action.context) :, None]).sum()


# ---------------------------------------------------------------------- tree rollouts over live forks


def grow(env: Corridor, actor: Actor, context: list[int], rng: np.random.Generator, fork: bool) -> Action:
    """Play `env`, which stands at a decision point, to its end. Returns the first action of what was played."""
    action = Action(context, actor.sample(context))
    branches = [env]
    observation, action.reward, terminated, truncated, _ = env.step(actor.text(action.ids))
    if terminated or truncated:
        return action
    after = action.context + action.ids + actor.reply(observation)
    if fork and rng.random() < COIN:
        branches += env.fork(1)  # a live copy, state and all; no env step is played again
    for branch in branches:
        action.children.append(grow(branch, actor, after, rng, fork and len(branches) == 1))
    return action


def grow_tree(env: Corridor, seed: int, actor: Actor, rng: np.random.Generator) -> list[Action]:
    """ROOTS episodes of one task: a group whose members may branch."""
    _, info = env.reset(seed=seed)
    context = actor.open([message.to_dict() for message in info["messages"]])
    return [grow(copy, actor, context, rng, fork=True) for copy in env.fork(ROOTS)]


# ---------------------------------------------------------------------- credit


def credit(
    siblings: list[Action], weight: float, baseline: float | None = None
) -> list[tuple[Action, float]]:
    """(action, weighted advantage) for everything below a fork.

    Siblings are baselines for each other; an only child inherits the baseline of the fork above, less the reward that
    was already paid out. A path that was forked into k counts 1/k each.
    """
    scored = []
    for action in siblings:
        others = [a.value() for a in siblings if a is not action]
        mine = sum(others) / len(others) if others else baseline
        assert mine is not None, "the root needs at least two episodes"
        scored.append((action, weight * (action.value() - mine)))
        if action.children:
            scored += credit(action.children, weight / len(action.children), mine - action.reward)
    return scored


# ---------------------------------------------------------------------- training


def main() -> None:
    updates = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    actor, rng = Actor(), np.random.default_rng(0)
    optimiser = torch.optim.AdamW(actor.model.parameters(), lr=4e-4, weight_decay=0.0)
    env = Corridor(fold="train")
    for update in range(updates):
        trees = [grow_tree(env, 1000 * update + task, actor, rng) for task in range(TASKS)]
        scored = [pair for tree in trees for pair in credit(tree, 1.0)]
        tokens = sum(len(action.ids) for action, _ in scored)
        optimiser.zero_grad()
        for action, advantage in scored:
            if advantage:
                (-advantage * actor.logprob(action) / tokens).backward()
        torch.nn.utils.clip_grad_norm_(actor.model.parameters(), 1.0)
        optimiser.step()
        success = np.mean([action.value() for tree in trees for action in tree])
        print(f"update {update + 1:3d}  {len(scored):4d} actions  success {success:.2f}")


if __name__ == "__main__":
    main()
