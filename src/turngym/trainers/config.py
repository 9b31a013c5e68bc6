"""The configuration of a training run: frozen dataclasses, read from TOML, overridden by `section.field=value`.

The same classes describe the file, the command line and the run folder's `config.toml`; a field that does not
exist is an error that names the nearest one.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from turngym.errors import ConfigError, unknown_name
from turngym.types import Budget, from_mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """How long, and what is kept."""

    seed: int = 0
    "root of every random number of the run"
    updates: int = 40
    "optimiser cycles: one batch of trees each"
    env_steps: int = 0
    "stop once this many env steps of training are spent; 0 means no such limit"
    evaluate_every: int = 10
    "updates between evaluations; the first and the last update are always evaluated"
    checkpoint_every: int = 10
    "updates between checkpoints; the last update always has one"
    keep_checkpoints: int = 2
    "older ones are removed"
    keep_trees_every: int = 10
    "updates between saved batches of trees; 0 saves none"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Which model, and which of its weights learn."""

    spec: str = "local:sprout"
    "as `agents.policies.load_policy` takes it; training needs a `local:` policy"
    lora_rank: int = 0
    "rank of a LoRA adapter on all linear layers; 0 trains every weight"
    lora_alpha: float = 32.0
    "the adapter is scaled by alpha / rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """What is trained on and what is held out."""

    env: str = "turngym/Corridor-v0"
    "a registered id"
    options: Mapping[str, Any] = field(default_factory=dict)
    "constructor options of the environment"
    folds: bool = True
    "the environment keeps `train` and `test` instances apart; without it, tasks differ by seed alone"
    train: int = 4096
    "training tasks; when all were used, the next epoch shuffles them anew"
    held_out: int = 200
    "evaluation tasks"
    attempts: int = 1
    "paths per held-out task"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """How trees are grown."""

    trees: int = 8
    "trees (tasks) in one update"
    plan: str = "group"
    "where to fork: see `agents.branching`"
    plan_options: Mapping[str, Any] = field(default_factory=dict)
    "options of the plan"
    leaves: int = 0
    "budget of one tree in finished paths; 0 means no limit"
    policy_tokens: int = 0
    "budget of one tree in sampled tokens; 0 means no limit"
    env_steps: int = 0
    "budget of one tree in env steps; 0 means no limit"
    live_paths: int = 64
    "paths that are live at once"
    retries: int = 2
    "how often a path that ended in a fault is played again"
    max_fault_share: float = 0.5
    "stop the run where more of a batch's paths than this ended in faults: something is broken, not unlucky"
    temperature: float = 1.0
    "of sampling in training; the loss uses the same"
    budget: Budget = field(default_factory=Budget)
    "limits of one path"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditConfig:
    """Who gets the credit."""

    rule: str = "grpo"
    "see `trainers.credit`"
    options: Mapping[str, Any] = field(default_factory=dict)
    "options of the rule"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """What is minimised."""

    name: str = "ppo"
    "see `trainers.losses`"
    options: Mapping[str, Any] = field(default_factory=dict)
    "options of the loss"
    aggregation: Literal["token_mean", "constant"] = "token_mean"
    "`token_mean` divides by the trained tokens of the whole batch, `constant` by `horizon` times the rollouts"
    horizon: int = 0
    "the constant of `constant`: tokens of a long rollout"
    entropy: float = 0.0
    "coefficient of the entropy bonus"
    kl: float = 0.0
    "coefficient of the k3 penalty to the initial policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserConfig:
    """AdamW and how a batch is cut."""

    lr: float = 4e-4
    warmup: int = 0
    "updates of linear warm-up"
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    "what the learning rate does after the warm-up, down to 0 at the last update"
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    grad_clip: float = 1.0
    "maximum norm of the gradient; 0 switches it off"
    epochs: int = 1
    "passes over a batch"
    minibatches: int = 1
    "optimiser steps per pass"
    micro_tokens: int = 16384
    "padded tokens in one forward; smaller needs less memory and changes nothing else"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A whole run."""

    run: RunConfig = field(default_factory=RunConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    tasks: TaskConfig = field(default_factory=TaskConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    credit: CreditConfig = field(default_factory=CreditConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], *, where: str = "configuration") -> TrainConfig:
        """Build from nested plain data; what is missing has its default.

        Raises:
            UnknownName: for a section or field that does not exist.
            ConfigError: for a value of the wrong type or out of range.
        """
        sections = {f.name: f for f in dataclasses.fields(cls)}
        made: dict[str, Any] = {}
        for name, values in data.items():
            if name not in sections:
                raise unknown_name(f"section of {where}", name, sections)
            if not isinstance(values, Mapping):
                raise ConfigError(f"{where}: [{name}] must be a table, got {values!r}")
            made[name] = _section(sections[name].default_factory, values, f"[{name}] of {where}")  # type: ignore[arg-type]
        return cls(**made)

    @classmethod
    def load(cls, path: str | Path) -> TrainConfig:
        """Read a TOML file.

        Raises:
            ConfigError: where the file is missing or not TOML.
        """
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"can't read the configuration {path}: {error}") from error
        return cls.from_mapping(data, where=str(path))

    def override(self, settings: Sequence[str]) -> TrainConfig:
        """A copy with `section.field=value` applied; values are TOML, bare words are strings.

        >>> TrainConfig().override(["optimiser.lr=1e-4", "credit.rule=tree"]).credit.rule
        'tree'
        """
        data = self.to_mapping()
        for setting in settings:
            path, found, text = setting.partition("=")
            keys = path.strip().split(".")
            if not found or len(keys) < 2:
                raise ConfigError(f"write section.field=value, got {setting!r}")
            target = data
            for key in keys[:-1]:
                target = target.setdefault(key, {})
                if not isinstance(target, dict):
                    raise ConfigError(f"{setting!r}: {key} is not a table")
            target[keys[-1]] = _value(text.strip())
        return self.from_mapping(data, where="--set")

    def to_mapping(self) -> dict[str, Any]:
        """Nested plain data; fields that are None are left out, as TOML has no null."""
        return _plain(self)


def _section(cls: Any, values: Mapping[str, Any], where: str) -> Any:
    """One section: nested budgets are built, scalars are checked against the type of their default."""
    made = dict(values)
    defaults, hints = cls(), get_type_hints(cls)
    for name, value in values.items():
        if name not in hints:
            continue  # from_mapping names the nearest
        if get_origin(hints[name]) is Literal and value not in get_args(hints[name]):
            raise unknown_name(f"{name} in {where}", str(value), get_args(hints[name]))
        default = getattr(defaults, name)
        if isinstance(default, Budget):
            made[name] = from_mapping(Budget, value, where=f"{where}, {name}")
        elif isinstance(default, Mapping):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {name} must be a table, got {value!r}")
        elif isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            made[name] = float(value)
        elif type(value) is not type(default):
            raise ConfigError(
                f"{where}: {name} must be {type(default).__name__}, got {value!r} ({type(value).__name__})"
            )
        if isinstance(made[name], (int, float)) and not isinstance(value, bool) and made[name] < 0:
            raise ConfigError(f"{where}: {name} can't be negative, got {value!r}")
    return from_mapping(cls, made, where=where)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: _plain(v) for name, v in pairs if v is not None}
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return value


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
