"""What sharing prefixes saves in training: python benchmarks/packing.py [--json FILE]

One tree of 32 paths: a prompt, four forks behind it, eight answers each. Its parts are sized so that the flat layout
computes 1, 2, 5 or 10 tokens for each unique one; a path has 384 tokens on average, so the flat layout costs about the
same each time, and answers differ in length by up to a half, as they do when a policy ends them. One update (forward,
loss, backward, AdamW) of a Llama with random weights, in three layouts:

    flat      every row by itself, in padded micro-batches
    grouped   the prompt that all rows share is computed once (prefix grouping), what is forked later in every row
    packed    every token once

Times are CPU seconds on one thread, the fastest of some updates, so that neither a busy machine nor the first update
shows; memory is the growth of the process at its peak. Each layout runs in a process of its own, forked after the
imports; the three take turns, so that all meet the machine in the same state. A figure `speedup_at_R` is that of the
model that gains least; `gradient_gap` is the largest relative difference to the flat gradient.

Targets: speedup >= 0.9 of the token ratio from 2 on, >= 0.95 at 1; gradient_gap <= 1e-5.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from _report import parse_json_flag, report
from turngym.trainers.config import LossConfig, OptimiserConfig
from turngym.trainers.layouts import PackedLayout, PackedPart, Part
from turngym.trainers.learner import Learner
from turngym.trainers.packing import depth_first, lay_out, token_ratio
from turngym.trainers.rows import Row, rows_of
from turngym.tree import Kind, Origin, Tree
from turngym.types import FloatArray, Outcome, StopReason

RATIOS = (1, 2, 5, 10)
LAYOUTS = ("flat", "grouped", "packed")
SIZES = {"1M": (128, 4, 5), "4M": (256, 5, 3), "12M": (384, 7, 4)}
"""Width, layers, and how many updates of each layout are timed."""

FORKS, ANSWERS, LENGTH = 4, 8, 384
PATHS = FORKS * ANSWERS
PROMPT = 0.7  # of what is shared; the rest lies behind the forks
MICRO_TOKENS = 4096
VOCABULARY = 512
HASH = "00" * 16


def grown(ratio: int) -> Tree:
    """A tree whose flat layout has `ratio` times its tokens."""
    once = PROMPT + (1 - PROMPT) * FORKS  # tokens that a shared token of a path costs in the tree
    shared = PATHS * LENGTH * (1 - 1 / ratio) / (PATHS - once)
    prompt, stem = round(PROMPT * shared), round((1 - PROMPT) * shared)
    rng = np.random.default_rng(ratio)
    tree = Tree(task_id="t", rollout_id="t", renderer_hash=HASH)

    def observe(parent: int, count: int) -> int:
        ids = rng.integers(0, VOCABULARY, count)
        return tree.add(parent, Kind.OBSERVATION, ids, origin=Origin.ENV, starts_context=parent < 0)

    def act(parent: int, count: int) -> int:
        ids, logprobs = rng.integers(0, VOCABULARY, count), np.full(count, -np.log(VOCABULARY))
        node = tree.add(parent, Kind.ACTION, ids, origin=Origin.SAMPLED, logprobs=logprobs, version=0)
        tree[node].advantage = float(rng.normal())
        return node

    root = observe(-1, max(prompt, 1))
    for _ in range(FORKS):
        fork = root
        if stem:
            fork = observe(act(root, stem - stem // 2), stem // 2) if stem > 1 else act(root, stem)
        for answer in range(ANSWERS):
            share = 0.5 + answer / (ANSWERS - 1)  # from half to one and a half times the average
            leaf = act(fork, max(round(share * (LENGTH - max(prompt, 1) - stem)), 1))
            tree[leaf].stop, tree[leaf].outcome = StopReason.TERMINATED, Outcome.FAILURE
    return tree


class GroupedLayout(PackedLayout):
    """Shares what all rows begin with and nothing else."""

    def parts(self, rows: Sequence[Row], tokens: int) -> Iterator[Part]:
        ordered, shared = depth_first(rows)
        common = int(shared[1:].min())
        added = np.array([row.ids.size - common for row in ordered])
        part = (added.cumsum() - added) // max(tokens - common, 1)  # the k-th to begin in each budget's worth
        for number in range(int(part.max()) + 1):
            chosen = np.flatnonzero(part == number)
            own = [ordered[i] for i in chosen]
            yield PackedPart(lay_out(own, np.minimum(shared[chosen], common)), self.forward)


@dataclass(frozen=True)
class Cell:
    seconds: float
    peak_mib: float
    gradient: FloatArray


def model_of(size: str) -> LlamaForCausalLM:
    width, layers, _ = SIZES[size]
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=width,
            intermediate_size=round(8 / 3 * width / 32) * 32,
            num_hidden_layers=layers,
            num_attention_heads=width // 32,
            num_key_value_heads=width // 64,
            max_position_embeddings=2 * LENGTH,
        )
    )


class Bench:
    """One layout of one cell, in a process of its own."""

    def __init__(self, size: str, ratio: int, layout: str) -> None:
        torch.set_num_threads(1)
        self.tree = grown(ratio)
        self.learner = Learner(
            model_of(size),
            loss=LossConfig(),
            optimiser=OptimiserConfig(
                lr=0.0,
                grad_clip=0.0,
                micro_tokens=MICRO_TOKENS,
                layout="flat" if layout == "flat" else "packed",
            ),
            renderer_hash=HASH,
        )
        if layout == "grouped":
            assert isinstance(self.learner.layout, PackedLayout)
            self.learner.layout = GroupedLayout(self.learner.layout.forward)
        self.before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def update(self) -> float:
        """CPU seconds of one."""
        started = time.process_time()
        self.learner.update([self.tree])
        return time.process_time() - started

    def result(self) -> tuple[float, FloatArray]:
        """Growth at the peak in MiB, and the gradient."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        gradients = [p.grad.flatten() for p in self.learner.parameters if p.grad is not None]
        return (peak - self.before) / 1024, torch.cat(gradients).numpy()


def serve(bench: tuple[str, int, str], orders: Connection) -> None:
    """Run methods of a `Bench` by name until there is none."""
    mine = Bench(*bench)
    while name := orders.recv():
        orders.send(getattr(mine, name)())


def compared(size: str, ratio: int) -> dict[str, Cell]:
    """The layouts side by side."""
    context = multiprocessing.get_context("fork")
    lines = {}
    for layout in LAYOUTS:
        lines[layout], theirs = context.Pipe()
        context.Process(target=serve, args=((size, ratio, layout), theirs), daemon=True).start()
        theirs.close()  # where the process dies, `recv` says so instead of waiting

    def ask(layout: str, name: str) -> Any:
        lines[layout].send(name)
        return lines[layout].recv()

    rounds = [{layout: ask(layout, "update") for layout in LAYOUTS} for _ in range(SIZES[size][2])]
    cells = {
        layout: Cell(min(times[layout] for times in rounds), *ask(layout, "result")) for layout in LAYOUTS
    }
    for line in lines.values():
        line.send("")
    return cells


def main() -> None:
    json_path = parse_json_flag()
    rows, speedups, gap = [], {ratio: [] for ratio in RATIOS}, 0.0
    for size in SIZES:
        for ratio in RATIOS:
            cells = compared(size, ratio)
            flat, packed = cells["flat"], cells["packed"]
            speedups[ratio].append(flat.seconds / packed.seconds)
            for layout in ("grouped", "packed"):
                distance = np.linalg.norm(cells[layout].gradient - flat.gradient)
                gap = max(gap, float(distance / np.linalg.norm(flat.gradient)))
            shared = token_ratio(rows_of([grown(ratio)], renderer_hash=HASH))
            rows.append(
                {
                    "model": size,
                    "ratio": round(shared, 2),
                    "flat s": flat.seconds,
                    "grouped ×": flat.seconds / cells["grouped"].seconds,
                    "packed ×": flat.seconds / packed.seconds,
                    "target ×": 0.95 if ratio == 1 else 0.9 * shared,
                    "flat MiB": round(flat.peak_mib),
                    "grouped MiB": round(cells["grouped"].peak_mib),
                    "packed MiB": round(packed.peak_mib),
                }
            )
            print(rows[-1], file=sys.stderr)
    figures = {f"speedup_at_{ratio}": min(values) for ratio, values in speedups.items()}
    figures["gradient_gap"] = gap
    report("One update in three layouts", rows, figures, json_path)
    if gap > 1e-5:
        sys.exit(f"the packed gradient differs by {gap:.2g}")


if __name__ == "__main__":
    main()
