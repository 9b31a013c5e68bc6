"""Makes `sprout`, the small default policy that ships in the package: `python -m turngym.agents.policies.sprout DIR`.

A Llama of under a million parameters with a byte-level BPE of its own, trained from scratch on demonstrations of the
built-in games. The demonstrators err on purpose (`Mixture`), so the model masters the format and is mediocre at the
games, which is what reinforcement learning needs: a start that never wins has no signal to learn from.

Everything is seeded; on one machine the same command gives the same weights. The tokenizer belongs to the weights:
a retrained one gives other ids and a model that never wins, so the folder is always replaced as a whole.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from turngym.agents.branching import make_plan
from turngym.agents.chat import ByteRenderer, Renderer
from turngym.agents.policies.scripted import Mixture, by_expert
from turngym.agents.rollout.collect import collect
from turngym.agents.template import TemplateRenderer
from turngym.errors import ConfigError
from turngym.seeding import derive, generator
from turngym.tasks.task import procedural
from turngym.tree import Tree

logger = logging.getLogger(__name__)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
WINDOW = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Demonstrations of one game."""

    env: str
    count: int
    "episodes"
    epsilon: float
    "share of random actions, below a half: they lead into states from which the expert has to recover"
    imitate_errors: bool = False
    "in the last epoch, learn the random actions as well: the model knows what to do and does it half-heartedly"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (
            not 0 <= self.epsilon < 0.5
        ):  # at a half, the recorded log-prob can't tell the expert from the dice
            raise ConfigError(f"epsilon of a course is at least 0 and below a half, got {self.epsilon}")


COURSES = (
    Course(env="turngym/Corridor-v0", count=2200, epsilon=0.4, imitate_errors=True),
    Course(
        env="turngym/Corridor-v0",
        count=300,
        epsilon=0.4,
        imitate_errors=True,
        options={"rooms": 4, "one_way": 1},
    ),
    Course(
        env="turngym/Corridor-v0",
        count=500,
        epsilon=0.4,
        imitate_errors=True,
        options={"rooms": 8, "one_way": 3},
    ),
    Course(env="turngym/GuessNumber-v0", count=1000, epsilon=0.3, imitate_errors=True),
    Course(env="turngym/Mastermind-v0", count=1600, epsilon=0.2),
    Course(
        env="turngym/Ledger-v0", count=1000, epsilon=0.02, options={"entries": 4, "accounts": 2, "page": 1}
    ),
    Course(
        env="turngym/Ledger-v0", count=1000, epsilon=0.02, options={"entries": 2, "accounts": 2, "page": 1}
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How sprout is made."""

    seed: int = 0
    vocabulary: int = 512
    "tokens, special ones included"
    width: int = 128
    layers: int = 4
    heads: int = 4
    feed_forward: int = 352
    epochs: int = 3
    batch: int = 16
    "episodes in one step"
    lr: float = 6e-3
    "peak, of the matrices inside the layers (Muon, scaled to AdamW's RMS); cosine to a tenth of it"
    lr_rest: float = 4e-3
    "peak, of embeddings and norms (AdamW)"
    warmup: int = 40
    "steps"


def make_sprout(folder: Path, recipe: Recipe | None = None) -> None:
    """Make tokenizer and weights, and write a folder that `AutoModelForCausalLM` and `AutoTokenizer` load."""
    recipe = recipe or Recipe()
    started = time.monotonic()
    tokenizer = train_tokenizer(
        _texts(demonstrations(ByteRenderer(), recipe.seed, share=0.2)), recipe.vocabulary
    )
    logger.info("tokenizer of %d tokens after %.0f s", len(tokenizer), time.monotonic() - started)
    demos = demonstrations(TemplateRenderer(tokenizer), recipe.seed)
    logger.info("%d demonstrations after %.0f s", len(demos), time.monotonic() - started)
    model = train_model([_row(*demo) for demo in demos], tokenizer, recipe)
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    logger.info("written to %s after %.0f s", folder, time.monotonic() - started)


def demonstrations(renderer: Renderer, seed: int, *, share: float = 1.0) -> list[tuple[Tree, Course]]:
    """One tree an episode, played by erring experts on training instances."""

    async def play_all() -> list[tuple[Tree, Course]]:
        demos: list[tuple[Tree, Course]] = []
        for index, course in enumerate(COURSES):
            tasks = procedural(
                course.env,
                fold="train",
                count=round(course.count * share),
                seed=derive(seed, "course", index),
                options=course.options,
            )
            policy, plan = Mixture(course.epsilon, renderer=renderer), make_plan("group", size=1)
            trees = await collect(tasks, policy, plan, seed=derive(seed, "demo", index))
            demos += [(tree, course) for tree in trees if tree is not None]
        return demos

    return asyncio.run(play_all())


def _texts(demos: Sequence[tuple[Tree, Course]]) -> Iterator[str]:
    renderer = ByteRenderer()
    for tree, _ in demos:
        for node in tree:
            yield renderer.text(node.ids)
            yield "assistant\n" if node.is_action else "tool\n"


def train_tokenizer(texts: Iterator[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE that splits before spaces, after newlines and around every digit, with a ChatML template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?[0-9]|[^ \n0-9]*\n| ?[^ \n0-9]+| "), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        additional_special_tokens=[SPECIAL[1]],
        chat_template=CHAT_TEMPLATE,
        model_max_length=WINDOW,
        clean_up_tokenization_spaces=False,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One episode of T tokens; a label is the id where it is imitated and −100 elsewhere."""

    ids: Tensor
    "`(T,)`"
    labels: Tensor
    "`(T,)` of every epoch but the last"
    last_labels: Tensor
    "`(T,)` of the last epoch"


def train_model(rows: Sequence[Row], tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> LlamaForCausalLM:
    """Maximum likelihood of the labels: what the environment said is read, not imitated."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=recipe.width,
                intermediate_size=recipe.feed_forward,
                num_hidden_layers=recipe.layers,
                num_attention_heads=recipe.heads,
                num_key_value_heads=recipe.heads // 2,
                max_position_embeddings=WINDOW,
                tie_word_embeddings=True,
                initializer_range=0.05,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    steps = recipe.epochs * (len(rows) // recipe.batch)
    optimisers = _optimisers(model, recipe)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _cosine(step, recipe.warmup, steps))
        for optimiser in optimisers
    ]
    for step, (batch, last) in enumerate(_batches(rows, recipe)):
        # Causal attention never looks right, so padded rows need no mask.
        ids = pad_sequence([r.ids for r in batch], batch_first=True, padding_value=tokenizer.pad_token_id)
        chosen = [r.last_labels if last else r.labels for r in batch]
        labels = pad_sequence(chosen, batch_first=True, padding_value=-100)
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        said = labels[:, 1:] >= 0  # a sixth of all tokens: the output layer need not look at the others
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[said]), labels[:, 1:][said])
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser, schedule in zip(optimisers, schedules, strict=True):
            optimiser.step()
            schedule.step()
        if step % 50 == 0 or step == steps - 1:
            logger.info("step %d of %d: loss %.4f", step, steps, loss.item())
    model.eval()
    return model


def _optimisers(model: LlamaForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al., 2024) for the matrices inside the layers, which halves the steps; AdamW for the rest."""
    inside = [p for p in model.model.layers.parameters() if p.ndim == 2]
    rest = [*model.model.embed_tokens.parameters(), *(p for p in model.parameters() if p.ndim == 1)]
    return [
        torch.optim.Muon(inside, lr=recipe.lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=recipe.lr_rest, betas=(0.9, 0.95), weight_decay=0.1),
    ]


def _row(tree: Tree, course: Course) -> Row:
    """The only path of a demonstration."""
    (leaf,) = tree.leaves
    path = [tree[i] for i in tree.path(leaf)]
    clean = [by_expert(node, course.epsilon) for node in path]
    ids = np.concatenate([node.ids for node in path]).astype(np.int64)

    def labels(imitated: Sequence[bool]) -> Tensor:
        mask = np.repeat(imitated, [node.ids.size for node in path])
        return torch.from_numpy(np.where(mask, ids, -100))

    everything = [node.is_action for node in path]
    return Row(torch.from_numpy(ids), labels(clean), labels(everything if course.imitate_errors else clean))


def _batches(rows: Sequence[Row], recipe: Recipe) -> Iterator[tuple[list[Row], bool]]:
    """Every row once an epoch, rows of like length together, so that little is padded; and whether it is the last."""
    for epoch in range(recipe.epochs):
        rng = generator(recipe.seed, "epoch", epoch)
        jitter = rng.uniform(0, 40, len(rows))
        by_length = np.argsort([len(row.ids) + j for row, j in zip(rows, jitter, strict=True)])
        full = len(rows) // recipe.batch
        groups = by_length[: full * recipe.batch].reshape(full, recipe.batch)
        for group in rng.permutation(full):
            yield [rows[i] for i in groups[group]], epoch == recipe.epochs - 1


def _cosine(step: int, warmup: int, steps: int) -> float:
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where to write the model")
    parser.add_argument("--seed", type=int, default=Recipe().seed)
    parser.add_argument("--epochs", type=int, default=Recipe().epochs)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    make_sprout(arguments.folder, Recipe(seed=arguments.seed, epochs=arguments.epochs))


if __name__ == "__main__":
    main()
