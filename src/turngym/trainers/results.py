"""What an evaluation found, task by task, and what may be said about it.

`Attempt`, `TaskResult` and `Evaluation` are plain records; `Journal` keeps them in a folder, one line per finished task,
so that an evaluation that was stopped goes on where it was. Numbers come from `trainers.statistics`.

A path that ended in a fault is no attempt: it was played again, is counted under `faults`, and enters no statistic.
A path that a budget of ours cut short is an attempt that did not succeed, and its stop reason is listed.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from turngym.errors import CheckpointError, ConfigError
from turngym.trainers.checkpoint import must_match
from turngym.trainers.statistics import Comparison, Estimate, compare_pairs, pass_at_k, pass_hat_k, share
from turngym.tree import Tree
from turngym.tree_io import atomic_write
from turngym.types import Outcome, StopReason

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Attempt:
    """One path that counts."""

    outcome: Outcome
    stop: StopReason
    reward: float
    "sum over the path (the undiscounted return)"
    turns: int
    policy_tokens: int

    @classmethod
    def of(cls, tree: Tree, leaf: int) -> Attempt:
        """The record of a finished path."""
        node, actions = tree[leaf], tree.actions(leaf)
        if node.outcome is None or node.stop is None:
            raise ConfigError(f"{tree.rollout_id}: node {leaf} is not the end of a path")
        tokens = sum(tree[a].ids.size for a in actions)
        return cls(node.outcome, node.stop, tree.path_return(leaf), len(actions), tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """Every attempt at one task, and what else was spent on it."""

    task_id: str
    attempts: tuple[Attempt, ...] = ()
    "in the order of their seeds"
    faults: Mapping[str, int] = field(default_factory=dict)
    "void paths and failed starts by outcome (`env_fault`, `harness_fault`)"
    env_steps: int = 0
    "of all paths, void ones included"
    policy_tokens: int = 0
    "sampled in all paths, void ones included; a shared prefix counts once"

    @property
    def successes(self) -> int:
        """Attempts that solved the task."""
        return sum(a.outcome is Outcome.SUCCESS for a in self.attempts)

    @classmethod
    def of(cls, tree: Tree, leaves: Sequence[int]) -> TaskResult:
        """The result of a tree whose `leaves` are the attempts that count."""
        void = Counter(str(tree[leaf].outcome) for leaf in tree.leaves if tree.void(leaf))
        return cls(
            task_id=tree.task_id,
            attempts=tuple(Attempt.of(tree, leaf) for leaf in leaves),
            faults=dict(sorted(void.items())),
            env_steps=int(tree.meta.get("env_steps", 0)),
            policy_tokens=tree.sampled_tokens,
        )

    def after(self, earlier: TaskResult) -> TaskResult:
        """This result, with what an earlier, incomplete try at the task had cost."""
        return TaskResult(
            task_id=self.task_id,
            attempts=self.attempts,
            faults=dict(sorted((Counter(self.faults) + Counter(earlier.faults)).items())),
            env_steps=self.env_steps + earlier.env_steps,
            policy_tokens=self.policy_tokens + earlier.policy_tokens,
        )

    def to_json(self) -> bytes:
        """One line, without its end."""
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, line: bytes) -> TaskResult:
        """Read what `to_json` wrote. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
        data = orjson.loads(line)
        attempts = tuple(
            Attempt(Outcome(a.pop("outcome")), StopReason(a.pop("stop")), **a) for a in data.pop("attempts")
        )
        return cls(attempts=attempts, **data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A policy on a set of tasks."""

    policy: str
    attempts: int
    "that were asked for per task"
    results: tuple[TaskResult, ...]
    "in the order of the tasks"
    seconds: float = 0.0
    "spent in this process, without what a resumed evaluation had spent before"

    @property
    def counts(self) -> list[tuple[int, int]]:
        """(attempts that count, successes) per task."""
        return [(len(r.attempts), r.successes) for r in self.results]

    @property
    def success(self) -> Estimate:
        """Mean over tasks of the share of attempts that succeed (avg@k, pass@1), with its interval."""
        played = [(n, c) for n, c in self.counts if n]
        return share([c / n for n, c in played], [n for n, _ in played])

    def summary(self) -> dict[str, Estimate]:
        """Estimates under their names: `success`, then `pass@k` and `pass^k` for k = 2, 4, 8, … and `attempts`.

        A task with fewer than k attempts that count is left out of the estimates for k; `Estimate.tasks` tells.
        """
        out = {"success": self.success}
        for k in _powers(self.attempts):
            played = [(n, c) for n, c in self.counts if n >= k]
            blocks = [n // k for n, _ in played]
            out[f"pass@{k}"] = share([pass_at_k(n, c, k) for n, c in played], blocks)
            out[f"pass^{k}"] = share([pass_hat_k(n, c, k) for n, c in played], blocks)
        return out

    def metrics(self, prefix: str = "eval") -> dict[str, float]:
        """Every figure under the keys of `docs/metrics.md`; an estimate that rests on no task is left out."""
        out: dict[str, float] = {}
        for name, estimate in self.summary().items():
            if not math.isnan(estimate.value):
                out |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        attempts = [a for r in self.results for a in r.attempts]
        if attempts:
            out["reward"] = math.fsum(a.reward for a in attempts) / len(attempts)
            out["turns"] = sum(a.turns for a in attempts) / len(attempts)
        outcomes, stops = Counter(a.outcome for a in attempts), Counter(a.stop for a in attempts)
        faults: Counter[str] = sum((Counter(r.faults) for r in self.results), Counter())
        out |= {f"outcome/{o}": outcomes[o] for o in (Outcome.SUCCESS, Outcome.FAILURE, Outcome.TRUNCATED)}
        out |= {f"stop/{stop}": count for stop, count in sorted(stops.items())}
        out |= {f"faults/{name}": faults[name] for name in (Outcome.ENV_FAULT, Outcome.HARNESS_FAULT)}
        out["tasks"] = len(self.results)
        out["attempts"] = len(attempts)
        out["attempts_missing"] = len(self.results) * self.attempts - len(attempts)
        out["env_steps"] = sum(r.env_steps for r in self.results)
        out["policy_tokens"] = sum(r.policy_tokens for r in self.results)
        out["seconds"] = self.seconds
        return {f"{prefix}/{name}": float(value) for name, value in out.items()}


def compare(a: Evaluation, b: Evaluation) -> Comparison:
    """Policy A against policy B, paired by task.

    Raises:
        ConfigError: where the two did not play the same tasks; names the first that differs.
    """
    ids_a, ids_b = [r.task_id for r in a.results], [r.task_id for r in b.results]
    if ids_a != ids_b:
        first = next((x or y for x, y in zip(ids_a, ids_b, strict=False) if x != y), None)
        where = f"they differ at {first!r}" if first else f"one has {len(ids_a)}, the other {len(ids_b)}"
        raise ConfigError(f"{a.policy} and {b.policy} were not evaluated on the same tasks: {where}")
    return compare_pairs(a.counts, b.counts)


class Journal:
    """Results in a folder: `evaluation.json` says what was evaluated, `results.jsonl` has a line per finished task.

    Each line reaches the disk before the next task is counted, and a line that was cut by a crash is dropped.

    Args:
        folder: is made where it is missing.
        config: plain data; a folder that was made with another one is refused.
        resume: go on with what the folder holds. Without it, the folder must hold no evaluation.

    Raises:
        CheckpointError: names the field that differs, the line that can't be read, or asks for `resume`.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], *, resume: bool) -> None:
        self.results: dict[str, TaskResult] = {}
        self._path = folder / "results.jsonl"
        header = folder / "evaluation.json"
        if header.exists():
            if not resume:
                raise CheckpointError(
                    f"{folder} holds an evaluation already: go on with it (resume), or choose another folder"
                )
            wanted = {"format_version": FORMAT_VERSION, **config}
            must_match(_read_header(header), wanted, where=str(header), what="evaluation")
            self._read()
        else:
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(header) as file:
                file.write(
                    orjson.dumps({"format_version": FORMAT_VERSION, **config}, option=orjson.OPT_INDENT_2)
                )
        self._file = self._path.open("ab")

    def record(self, result: TaskResult) -> TaskResult:
        """Append the result of one task, and return it with what earlier tries had cost."""
        earlier = self.results.get(result.task_id)
        result = result if earlier is None else result.after(earlier)
        self._file.write(result.to_json() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.results[result.task_id] = result
        return result

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _read(self) -> None:
        raw = self._path.read_bytes() if self._path.exists() else b""
        whole = raw[: raw.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                result = TaskResult.from_json(line)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CheckpointError(
                    f"{self._path}, line {number} is no result of an evaluation ({error}): remove that line to have "
                    "its task played again"
                ) from error
            self.results[result.task_id] = result
        if len(whole) < len(raw):
            os.truncate(self._path, len(whole))


def _powers(attempts: int) -> list[int]:
    powers = [1 << i for i in range(1, attempts.bit_length())]
    return powers if attempts == 1 or powers[-1] == attempts else [*powers, attempts]


def _read_header(path: Path) -> dict[str, Any]:
    try:
        data = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise CheckpointError(f"{path} can't be read ({error}): choose another folder") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} does not describe an evaluation: choose another folder")
    return data
