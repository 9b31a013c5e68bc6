"""The run folder: everything that a run leaves behind, written as it happens.

    config.toml          the whole configuration; `turngym train FOLDER/config.toml` runs it again
    metrics.jsonl        one object an update, every key defined in docs/metrics.md
    curve.png            success over env steps, redrawn after each evaluation
    trees/               the grown trees of some updates: update-000010.parquet, eval-000010.parquet
    tensorboard/         the same numbers for TensorBoard
    summary.json         what it came to: before and after, with intervals
    checkpoints/         written by the training loop itself (`trainers.checkpoint`)

A run that goes on from a checkpoint forgets the metrics that came after it, so no update stands twice in
`metrics.jsonl`. TensorBoard keeps what it was told: there the newer point of an update is the one that counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import orjson
import tomli_w

from turngym.events import Event, Measured, RunEnded, RunStarted, TreesGrown
from turngym.registry import import_extra
from turngym.tree import Tree
from turngym.tree_io import atomic_write, save_trees
from turngym.view.curve import draw_curve, need_matplotlib
from turngym.view.history import ENV_STEPS, EVAL_SUCCESS, POLICY_TOKENS, TRAIN_SECONDS, History, plain


class RunFolder:
    """Listens to one run and writes its folder.

    Args:
        folder: is made where it is missing.
        keep_trees_every: updates between saved batches of trees; 0 saves none.
        tree_format: Parquet needs pyarrow and is a fraction of the size; JSON Lines needs nothing.
        curve: draw `curve.png`; needs matplotlib.
        tensorboard: write TensorBoard events; needs tensorboard.

    Raises:
        MissingDependency: at once, where a package for one of these is missing.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_trees_every: int = 10,
        tree_format: Literal["parquet", "jsonl"] = "parquet",
        curve: bool = True,
        tensorboard: bool = True,
    ) -> None:
        self.folder = folder
        self.history = History()
        self._keep_trees_every, self._tree_format, self._curve = keep_trees_every, tree_format, curve
        self._tensorboard = import_extra("tensorboard.summary", extra="train") if tensorboard else None
        if curve:
            need_matplotlib()
        if keep_trees_every and tree_format == "parquet":
            import_extra("pyarrow", extra="train")
        self._writer: Any = None
        self._started = RunStarted("", {})
        self._clock = time.monotonic()

    def on(self, event: Event) -> None:
        """Write what the event brings."""
        match event:
            case RunStarted():
                self._start(event)
            case Measured(update, metrics):
                self._measure(update, metrics)
            case TreesGrown(update, fold, trees):
                self._keep(update, fold, trees)
            case RunEnded(reason):
                self._end(reason)
            case _:
                pass

    def _start(self, event: RunStarted) -> None:
        self._started, self._clock = event, time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.folder / "config.toml") as file:
            tomli_w.dump(plain(event.config), file)
        path = self.folder / "metrics.jsonl"
        if event.first_update and path.exists():
            self.history = History.read(path)
            self.history.cut(event.first_update)
        self._rewrite()
        if self._tensorboard is not None:
            self._writer = self._tensorboard.Writer(str(self.folder / "tensorboard"))

    def _rewrite(self) -> None:
        with atomic_write(self.folder / "metrics.jsonl") as file:
            for update, row in self.history.rows.items():
                file.write(_line(update, row))

    def _measure(self, update: int, metrics: Mapping[str, float]) -> None:
        known = update in self.history.rows
        self.history.add(update, metrics)
        if known:  # a resumed run makes up for the evaluation in which it was stopped
            self._rewrite()
        else:
            with (self.folder / "metrics.jsonl").open("ab") as file:
                file.write(_line(update, metrics))
        if self._writer is not None:
            for key, value in metrics.items():
                self._writer.add_scalar(key, value, step=update)
            self._writer.flush()
        if EVAL_SUCCESS in metrics:
            self._draw()

    def _keep(self, update: int, fold: str, trees: Sequence[Tree]) -> None:
        if not trees or not self._keep_trees_every or update % self._keep_trees_every:
            return
        name = "eval" if fold == "eval" else "update"
        folder = self.folder / "trees"
        folder.mkdir(exist_ok=True)
        save_trees(trees, folder / f"{name}-{update:06d}.{self._tree_format}")

    def _draw(self) -> None:
        if self._curve:
            draw_curve(self.history, self.folder / "curve.png", title=run_title(self._started.config))

    def _end(self, reason: str) -> None:
        with atomic_write(self.folder / "summary.json") as file:
            file.write(orjson.dumps(self._summary(reason), option=orjson.OPT_INDENT_2))
        if self.history.rows and EVAL_SUCCESS not in self.history.rows[max(self.history.rows)]:
            self._draw()
        if self._writer is not None:
            self._writer.close()

    def _summary(self, reason: str) -> dict[str, Any]:
        """What the run came to. An evaluation: its figures. A training run: before, after, and what it cost."""
        out: dict[str, Any] = {"reason": reason, "wall_seconds": time.monotonic() - self._clock}
        if self._started.kind != "train":
            return out | {k: v for row in self.history.rows.values() for k, v in row.items()}
        out["updates"] = max(self.history.rows, default=0)
        for name, key in (
            ("env_steps", ENV_STEPS),
            ("policy_tokens", POLICY_TOKENS),
            ("train_seconds", TRAIN_SECONDS),
            ("held_out_tasks", "eval/tasks"),
        ):
            out[name] = self.history.last(key)
        evaluations = self.history.evaluations()
        if evaluations:
            before, after = evaluations[0], evaluations[-1]
            out |= {"success_before": before.success, "interval_before": before.interval}
            out |= {"success_after": after.success, "interval_after": after.interval}
        return out


def run_title(config: Mapping[str, Any]) -> str:
    """What was trained on what, in one line."""
    policy, tasks = config.get("policy", {}), config.get("tasks", {})
    credit, rollout = config.get("credit", {}), config.get("rollout", {})
    title = f"{policy.get('spec', 'policy')} on {tasks.get('env', 'tasks')}"
    details = [d for d in (credit.get("rule"), rollout.get("plan")) if d]
    return f"{title}  ({', '.join(details)})" if details else title


def _line(update: int, metrics: Mapping[str, float]) -> bytes:
    return orjson.dumps({"update": update, **metrics}) + b"\n"


__all__ = ["RunFolder", "run_title"]
