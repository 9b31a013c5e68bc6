"""The same training run by turngym and by TRL: python benchmarks/vs_trl.py [--json FILE] [--updates N] [--every K]

Both train every weight of the policy that ships, on the same Corridor tasks in the same order, with groups of eight
paths, four tasks an update, temperature 1, the GRPO advantage, the same clip, the same AdamW and the same number of
updates, one after the other, one thread each. Every K updates the weights of both play the same 100 held-out tasks with
the same evaluation (turngym's). Times are of training alone: generation, environment and update, without start-up,
evaluations and saving.

    seconds_*             a mean update; `cpu_seconds_*` the CPU time of it
    tokens_per_s_*        trained tokens (those that the policy said) a second of that
    success_*             on the held-out tasks after the last update; `success_start` before the first
    update_ratio          TRL's seconds an update divided by turngym's
    cpu_ratio             the same of CPU time: what to look at where something else ran on the machine
    wall_ratio            TRL's wall time to a success divided by turngym's to the same. The success is the best that
                          the slower learner reaches; where that is less than 0.2 above the start (four standard
                          errors), noise would decide, so the last line says so and there is no figure

TRL goes into a virtual environment of its own in the cache folder, with turngym beside it without its training extra, so
that the game is the same code. Its `environment_factory` can't take this model: it asks for a chat template with tool
calls, and ends the episode at the first answer that is no call, where this game answers with an error. So the peer is
what TRL documents for everything else, a `rollout_func`: all episodes of the batch in step, a `model.generate` over
their whole histories each turn, as TRL's trainer generates without vLLM.

What differs, beyond the trainer:

* In turngym each path advances alone, and the keys and values of its history are kept between turns. TRL's episodes take
  their turns in step, each waiting for the longest action, and every turn computes the histories anew. With vLLM on a
  GPU, TRL would reuse prefixes as well: this compares what either does on a CPU, and says nothing about the other.
* turngym computes what paths share once in the update as well (`layout = "packed"`), which its gradient doesn't show.
  TRL has no such option: it pads each path into a row.
* The random numbers of sampling differ, so curves differ by chance: one seed, 100 tasks, a standard error of 0.05.
* TRL's defaults of bfloat16 and gradient checkpointing are switched off, so that both compute in float32 and nothing twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported

import torch

from _report import report
from turngym.agents.policies import load_policy
from turngym.agents.policies.loading import SPROUT
from turngym.envs.adapters.worker_venv import cache_folder
from turngym.events import Event, Measured, PhaseStarted
from turngym.seeding import derive
from turngym.trainers.config import TrainConfig
from turngym.trainers.evaluate import evaluate
from turngym.trainers.loop import Trainer

TRL = ["torch==2.13.0", "trl==1.16.0"]
ROOT = Path(__file__).parents[1]
LEAST_GAIN = 0.2
GROUP = 8
Curve = list[tuple[float, float]]
"""(seconds of training, held-out success), the start first."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one of the two did."""

    seconds: float
    cpu_seconds: float
    tokens: int
    curve: Curve

    @property
    def best(self) -> float:
        return max(success for _, success in self.curve)

    def seconds_to(self, level: float) -> float:
        """Seconds until the curve first reaches `level`, linear between its evaluations."""
        (before, low), *rest = self.curve
        for seconds, success in rest:
            if low >= level:
                break
            if success >= level:
                return before + (seconds - before) * (level - low) / (success - low)
            before, low = seconds, success
        return before


def configuration(updates: int, every: int) -> TrainConfig:
    """What both runs are made from."""
    return TrainConfig.from_mapping(
        {
            "run": {
                "updates": updates,
                "evaluate_every": every,
                "checkpoint_every": updates,
                "keep_trees_every": 0,
            },
            "tasks": {
                "env": "turngym/Corridor-v0",
                "options": {"rooms": 8, "one_way": 3},
                "held_out": 100,
            },
            "rollout": {
                "trees": 4,
                "plan": "group",
                "plan_options": {"size": GROUP},
                "budget": {"turn_tokens": 24},
            },
            "credit": {"rule": "grpo"},
            "loss": {"name": "ppo", "options": {"clip_low": 0.2, "clip_high": 0.28}},
            "optimiser": {"lr": 5e-4, "beta2": 0.99, "layout": "packed"},
        }
    )


class Log:
    """Keeps the curve of a run, and the CPU time from the start of each rollout to the end of its update."""

    def __init__(self) -> None:
        self.curve: Curve = []
        self.cpu_seconds = 0.0
        self._started: float | None = None

    def on(self, event: Event) -> None:
        if isinstance(event, PhaseStarted) and event.name == "rollout":
            self._started = time.process_time()
        elif self._started is not None and (
            isinstance(event, Measured) or (isinstance(event, PhaseStarted) and event.name == "eval")
        ):
            self.cpu_seconds += time.process_time() - self._started
            self._started = None
        if isinstance(event, Measured) and "eval/success" in event.metrics:
            self.curve.append((event.metrics.get("progress/train_s", 0.0), event.metrics["eval/success"]))


def train_turngym(config: TrainConfig, folder: Path) -> Run:
    log = Log()
    result = asyncio.run(Trainer(config, folder=folder, listeners=[log]).run())
    return Run(result.train_seconds, log.cpu_seconds, result.policy_tokens, log.curve)


def peer_python() -> Path:
    """The interpreter that has TRL, made where it is not there yet (minutes)."""
    folder = cache_folder() / "venvs" / f"bench-{TRL[-1]}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *TRL, "-e", ROOT], check=True)
        (folder / "ready").touch()
    return python


def train_trl(config: TrainConfig, folder: Path, start: float) -> Run:
    """TRL's run on the tasks that turngym's ledger would draw, judged by turngym's evaluation of its weights."""
    judge = Trainer(config, folder=folder / "judge")
    job = {
        "folder": str(folder),
        "model": str(SPROUT),
        "tasks": [asdict(task) for task in judge.ledger.draw(config.run.updates * config.rollout.trees)],
        "group": GROUP,
        "trees": config.rollout.trees,
        "turn_tokens": config.rollout.budget.turn_tokens,
        "updates": config.run.updates,
        "evaluate_every": config.run.evaluate_every,
        "seed": config.run.seed,
        **{name: getattr(config.optimiser, name) for name in ("lr", "beta1", "beta2", "grad_clip")},
        **config.loss.options,
    }
    (folder / "job.json").write_text(json.dumps(job))
    quiet = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    worker = [
        peer_python(),
        "-W",
        "ignore::FutureWarning",
        Path(__file__).with_name("_vs_trl_peer.py"),
        folder / "job.json",
    ]
    subprocess.run(worker, check=True, env=os.environ | quiet)
    updates = [json.loads(line) for line in (folder / "updates.jsonl").read_text().splitlines()]
    curve = [(0.0, start)]
    for weights in sorted((folder / "weights").iterdir(), key=lambda path: int(path.name)):
        seconds = sum(update["seconds"] for update in updates[: int(weights.name)])
        curve.append((seconds, held_out_success(judge, weights)))
    total = {name: sum(update[name] for update in updates) for name in ("seconds", "cpu_seconds", "tokens")}
    return Run(**total, curve=curve)


def held_out_success(judge: Trainer, weights: Path) -> float:
    """What `judge`'s own training run would have measured, of the weights in a folder."""

    async def play() -> float:
        policy = load_policy(f"local:{weights}")
        seed = derive(judge.config.run.seed, "eval")
        result = await evaluate(judge.held_out, policy, options=judge.options, seed=seed)
        await policy.close()
        return result.success.value

    return asyncio.run(play())


def compare(runs: dict[str, Run], updates: int) -> tuple[list[dict[str, object]], dict[str, float]]:
    """The table and the figures."""
    start, level = runs["turngym"].curve[0][1], min(run.best for run in runs.values())
    figures = {"success_start": start}
    for name, run in runs.items():
        figures |= {
            f"seconds_{name}": run.seconds / updates,
            f"cpu_seconds_{name}": run.cpu_seconds / updates,
            f"tokens_per_s_{name}": run.tokens / run.seconds,
            f"success_{name}": run.curve[-1][1],
        }
    rows: list[dict[str, object]] = [
        {
            "trainer": name,
            "s per update": figures[f"seconds_{name}"],
            "CPU s": figures[f"cpu_seconds_{name}"],
            "tokens": run.tokens,
            "tokens per s": figures[f"tokens_per_s_{name}"],
            "success, start": run.curve[0][1],
            "end": run.curve[-1][1],
            f"s to {level:.2f}": run.seconds_to(level),
        }
        for name, run in runs.items()
    ]
    figures["update_ratio"] = figures["seconds_trl"] / figures["seconds_turngym"]
    figures["cpu_ratio"] = figures["cpu_seconds_trl"] / figures["cpu_seconds_turngym"]
    if level - start >= LEAST_GAIN:
        figures["wall_ratio"] = runs["trl"].seconds_to(level) / runs["turngym"].seconds_to(level)
    return rows, figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--updates", type=int, default=30, help="of each trainer")
    parser.add_argument("--every", type=int, default=5, help="updates between evaluations")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = configuration(arguments.updates, arguments.every)
    peer_python()
    with tempfile.TemporaryDirectory(prefix="vs-trl-") as name:
        ours, theirs = Path(name, "turngym"), Path(name, "trl")
        theirs.mkdir()
        turngym = train_turngym(config, ours)
        runs = {"turngym": turngym, "trl": train_trl(config, theirs, turngym.curve[0][1])}
    rows, figures = compare(runs, arguments.updates)
    report(f"GRPO on Corridor, {arguments.updates} updates", rows, figures, arguments.json)
    words = {"update_ratio": "an update", "cpu_ratio": "an update, CPU", "wall_ratio": "the same success"}
    for figure, what in words.items():
        if figure in figures:
            print(f"{figure}: for {what}, TRL takes {figures[figure]:.2f} times as long")
    if "wall_ratio" not in figures:
        slower = min(runs, key=lambda trainer: runs[trainer].best)
        print(f"no wall_ratio: {slower} gains less than {LEAST_GAIN} in {arguments.updates} updates")


if __name__ == "__main__":
    main()
