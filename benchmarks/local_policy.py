"""`LocalPolicy` against `model.generate` on full histories: 32 live episodes of 8 turns, greedy, the same tokens.

The baseline is what a rollout loop without a cache between turns does: every turn it left-pads the 32 histories and
calls `generate` (with its own cache within the turn, the same end-of-turn ids and the same length limit per action).
Observations are scripted and of the length that text games give; the long variant starts from prompts of 1,000
tokens. Both sides render their observations, and each continues from its own actions.

    python benchmarks/local_policy.py [--json FILE]
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
)

from _report import parse_json_flag, report
from turngym.agents.policies.loading import SPROUT
from turngym.agents.policies.local import LocalPolicy
from turngym.agents.policy import SampleParams
from turngym.seeding import generator
from turngym.types import Message

EPISODES, TURNS, MAX_TOKENS, REPEATS = 32, 8, 32, 3
TOOLS = (
    "You are in a corridor of rooms. Find the key, open the door and leave. Some steps can't be undone. Answer with one "
    'call, like <tool_call>{"name": "go", "arguments": {"direction": "east"}}</tool_call>. The tools are go, take, open, look.'
)
SIGHTS = (
    "You are in room {n}. There is a key on the floor. Doors lead east and west.",
    "The door to the east is locked. You need the key of room {n}.",
    "You take the key. It has the number {n} on it.",
    "You walk west. Room {n} is dark and empty, and the way back has closed behind you.",
    "There is no such tool. You can go, take, open or look; you wrote {n}.",
)

Records = list[list[np.ndarray]]


class Script:
    """What every episode is shown, and how long its actions may be."""

    def __init__(self, policy: LocalPolicy, prompt_tokens: int) -> None:
        rng = generator(7, "local policy benchmark", prompt_tokens)
        self.renderer = policy.renderer
        self.limits = rng.integers(8, MAX_TOKENS + 1, (TURNS, EPISODES))
        self.openings, self.replies = [], []
        for _ in range(EPISODES):
            text = TOOLS
            while True:
                text += " " + self._sight(rng)
                opening = self.renderer.open([Message("user", text)]).ids
                if opening.size >= prompt_tokens:
                    break
            self.openings.append(opening)
            self.replies.append([[Message("tool", self._sight(rng))] for _ in range(TURNS)])

    @staticmethod
    def _sight(rng: np.random.Generator) -> str:
        return str(rng.choice(SIGHTS)).format(n=rng.integers(100))

    def reply(self, episode: int, turn: int, action: np.ndarray) -> np.ndarray:
        ended = int(action[-1]) in self.renderer.stop_ids
        return self.renderer.reply(self.replies[episode][turn], ended=ended).ids


async def ours(policy: LocalPolicy, script: Script, temperature: float = 0.0) -> Records:
    """All episodes at their own pace. Returns per episode: context, action, log-probs, context, …"""

    async def episode(index: int) -> list[np.ndarray]:
        context, record = script.openings[index], []
        for turn in range(TURNS):
            limit = int(script.limits[turn, index])
            params = SampleParams(max_tokens=limit, temperature=temperature, seed=1000 * index + turn)
            sample = await policy.sample(context, params)
            record += [context, sample.ids, sample.logprobs]
            context = np.concatenate([context, sample.ids, script.reply(index, turn, sample.ids)])
        return record

    return await asyncio.gather(*(episode(i) for i in range(EPISODES)))


class RowLimits(StoppingCriteria):  # type: ignore[misc]
    """Ends each row at its own length."""

    def __init__(self, prompt: int, limits: np.ndarray) -> None:
        self.ends = prompt + torch.from_numpy(limits)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return input_ids.shape[1] >= self.ends


def theirs(policy: LocalPolicy, script: Script) -> Records:
    """All episodes in lock-step, a `generate` per turn."""
    contexts = list(script.openings)
    records: Records = [[] for _ in contexts]
    for turn in range(TURNS):
        width = max(c.size for c in contexts)
        ids = torch.zeros((EPISODES, width), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, context in enumerate(contexts):
            ids[i, width - context.size :] = torch.from_numpy(context.astype(np.int64))
            mask[i, width - context.size :] = 1
        out = policy.model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            use_cache=True,
            max_new_tokens=MAX_TOKENS,
            eos_token_id=list(script.renderer.stop_ids),
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([RowLimits(width, script.limits[turn])]),
        )
        for i, row in enumerate(out[:, width:].numpy().astype(np.int32)):
            ends = np.flatnonzero(np.isin(row, script.renderer.stop_ids))
            limit = int(script.limits[turn, i])
            action = row[: min(limit, int(ends[0]) + 1 if ends.size else limit)]
            records[i] += [contexts[i], action]
            contexts[i] = np.concatenate([contexts[i], action, script.reply(i, turn, action)])
    return records


def measure(policy: LocalPolicy, prompt_tokens: int) -> dict[str, float]:
    """Both sides in turn, several times; the best time of each counts."""
    script = Script(policy, prompt_tokens)
    seconds: dict[str, list[tuple[float, float]]] = {"ours": [], "generate": []}
    for _ in range(REPEATS):
        policy.weights_changed()  # begin without caches, as after an update
        mine, spent = timed(lambda: asyncio.run(ours(policy, script)))
        seconds["ours"].append(spent)
        baseline, spent = timed(lambda: theirs(policy, script))
        seconds["generate"].append(spent)
    wall, cpu = ({side: min(s[clock] for s in spans) for side, spans in seconds.items()} for clock in (0, 1))
    actions = [
        (a, b) for m, t in zip(mine, baseline, strict=True) for a, b in zip(m[1::3], t[1::2], strict=True)
    ]
    tokens, baseline_tokens = sum(a.size for a, _ in actions), sum(b.size for _, b in actions)
    return {
        "history": float(np.mean([record[-3].size for record in mine])),
        "tokens": float(tokens),
        "tokens_per_second": tokens / wall["ours"],
        "generate_tokens_per_second": baseline_tokens / wall["generate"],
        "cpu_ratio": tokens / cpu["ours"] * cpu["generate"] / baseline_tokens,
        "identical": float(np.mean([np.array_equal(a, b) for a, b in actions])),
    }


def timed(run: Callable[[], Records]) -> tuple[Records, tuple[float, float]]:
    """What `run` gives, and the seconds on the wall and of all cores that it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    out = run()
    return out, (time.perf_counter() - wall, time.process_time() - cpu)


def logprob_gap(policy: LocalPolicy) -> float:
    """Largest difference between recorded log-probs and those of one full forward over the finished episode."""
    policy.weights_changed()
    gap = 0.0
    for record in asyncio.run(ours(policy, Script(policy, 200), temperature=1.0)):
        context, ids, _ = record[-3:]
        whole = np.concatenate([context, ids]).astype(np.int64)
        with torch.inference_mode():
            logits = policy.model(input_ids=torch.from_numpy(whole)[None]).logits[0]
        rows = torch.log_softmax(logits.float(), -1).numpy()
        for start, action, logprobs in zip(record[::3], record[1::3], record[2::3], strict=True):
            at = np.arange(start.size, start.size + action.size)
            gap = max(gap, float(np.abs(rows[at - 1, action] - logprobs).max()))
    return gap


def make_policy() -> LocalPolicy:
    """The default policy, or a model of its size with random weights where it has not been made yet."""
    if SPROUT.joinpath("config.json").is_file():
        return LocalPolicy.load("sprout")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        [TOOLS, *SIGHTS] * 9,
        trainers.BpeTrainer(
            vocab_size=512, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", chat_template=template)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    return LocalPolicy(LlamaForCausalLM(config), tokenizer, name="random weights, size of local:sprout")


def main() -> None:
    json_path = parse_json_flag()
    policy = make_policy()
    short, long = measure(policy, 150), measure(policy, 1000)
    gap = logprob_gap(policy)
    rows = [
        {
            "prompt": prompts,
            "context": round(m["history"]),
            "tokens": int(m["tokens"]),
            "tok/s": m["tokens_per_second"],
            "generate": m["generate_tokens_per_second"],
            "ratio": m["tokens_per_second"] / m["generate_tokens_per_second"],
            "target": target,
            "CPU ratio": m["cpu_ratio"],
            "identical": m["identical"],
        }
        for prompts, m, target in (("150", short, "≥ 2"), ("1,000", long, "≥ 3"))
    ]
    figures = {
        "tokens_per_second": short["tokens_per_second"],
        "tokens_per_second_ratio": rows[0]["ratio"],
        "tokens_per_second_ratio_long": rows[1]["ratio"],
        "greedy_identical": min(short["identical"], long["identical"]),
        "logprob_gap": gap,
    }
    title = f"{policy.name}: {EPISODES} episodes of {TURNS} turns, {torch.get_num_threads()} threads"
    report(title, rows, figures, json_path)
    print(f"log-prob gap to a full forward: {gap:.2g} (target: at most 1e-4)")
    print(policy.stats)


if __name__ == "__main__":
    main()
