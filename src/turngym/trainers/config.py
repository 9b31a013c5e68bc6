"""The configuration of a training run: frozen dataclasses, read from TOML, overridden by `section.field=value`.

The same classes describe the file, the command line and the run folder's `config.toml`; a field that does not
exist is an error that names the nearest one.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from turngym.errors import ConfigError, unknown_name
from turngym.options import parse_value
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

    def __post_init__(self) -> None:
        _at_least(self, "run", 0, "seed", "updates", "env_steps", "keep_trees_every")
        _at_least(self, "run", 1, "evaluate_every", "checkpoint_every", "keep_checkpoints")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Which model, and which of its weights learn."""

    spec: str = "local:sprout"
    "as `agents.policies.load_policy` takes it; training needs a `local:` policy"
    lora_rank: int = 0
    "rank of a LoRA adapter on all linear layers; 0 trains every weight"
    lora_alpha: float = 32.0
    "the adapter is scaled by alpha / rank"

    def __post_init__(self) -> None:
        _at_least(self, "policy", 0, "lora_rank", "lora_alpha")


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

    def __post_init__(self) -> None:
        _at_least(self, "tasks", 1, "train", "held_out", "attempts")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupConfig:
    """Supervised learning from the environment's own script before the first update; see `trainers.warmup`."""

    episodes: int = 0
    "demonstrations on training tasks; 0 skips the warm-up"
    epsilon: float = 0.2
    "share of random actions in them: they are seen, and not imitated"
    epochs: int = 2
    "passes over the demonstrations"
    lr: float = 1e-3
    "peak of the learning rate"

    def __post_init__(self) -> None:
        _at_least(self, "warmup", 0, "episodes", "epsilon", "lr")
        _at_least(self, "warmup", 1, "epochs")
        if self.epsilon >= 0.5:
            raise ConfigError(
                f"warmup.epsilon must be below 0.5, got {self.epsilon!r}: the script errs too often"
            )


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

    def __post_init__(self) -> None:
        _at_least(self, "rollout", 0, "leaves", "policy_tokens", "env_steps", "retries", "temperature")
        _at_least(self, "rollout", 1, "trees", "live_paths")
        if not 0 <= self.max_fault_share <= 1:
            raise ConfigError(f"rollout.max_fault_share is a share in [0, 1], got {self.max_fault_share!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditConfig:
    """Who gets the credit."""

    rule: str = "grpo"
    "see `trainers.credit`"
    options: Mapping[str, Any] = field(default_factory=dict)
    "options of the rule"
    shaping: Mapping[str, Any] = field(default_factory=dict)
    "what is added to returns before the rule, a table of options each: see `trainers.credit.shaping`"


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticConfig:
    """Who guesses the returns that some credit rules compare with; see `trainers.critic`."""

    kind: Literal["", "probe", "network"] = ""
    "`probe`: a head on the policy's own hidden states, which it does not touch; `network`: a copy of the policy with a head, which learns by itself; empty means none"
    hidden: int = 0
    "width of the head's hidden layer; 0 makes it linear"
    freeze_attention: bool = False
    "of `network`: its attention layers keep the policy's first weights (SAO)"
    lam: float = 1.0
    "the critic is fitted to λ-returns; 1 means the returns themselves"
    loss: Literal["mse", "huber"] = "mse"
    "squared error, or Huber's with its knee at 1"
    lr: float = 1e-3
    "of AdamW without weight decay"
    epochs: int = 4
    "optimiser steps an update, each over the whole batch"
    grad_clip: float = 1.0
    "maximum norm of the gradient; 0 switches it off"
    warmup: int = 0
    "batches on which the critic alone learns, before the first update"

    def __post_init__(self) -> None:
        _at_least(self, "critic", 0, "hidden", "lam", "lr", "grad_clip", "warmup")
        _at_least(self, "critic", 1, "epochs")
        if self.lam > 1:
            raise ConfigError(f"critic.lam is a share in [0, 1], got {self.lam!r}")
        if self.freeze_attention and self.kind != "network":
            raise ConfigError(
                'critic.freeze_attention is of critic.kind = "network": nothing else has attention of its own'
            )
        given = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        if given and not self.kind:
            raise ConfigError(f"critic.{given[0]} is given, and no critic.kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """What is minimised."""

    name: str = "ppo"
    "see `trainers.losses`"
    options: Mapping[str, Any] = field(default_factory=dict)
    "options of the loss"
    aggregation: Literal["token_mean", "constant", "sequence_mean", "turn_constant"] = "token_mean"
    "`token_mean` divides by the trained tokens of the whole batch, `constant` by `horizon` times the rollouts; see `losses.aggregation`"
    horizon: int = 0
    "of `constant`: tokens of a long rollout; of `turn_constant`: turns of a typical one"
    proximal: Literal["behaviour", "start", "average", "between"] = "behaviour"
    "π_old that ratios are taken against: the policy that sampled, the weights at the start of the update (one more forward), their running average, or a line between sampling and current policy by version"
    proximal_decay: float = 0.9
    "of the running average, per optimiser step"
    correction: str = ""
    "of the gap between trainer and engine, see `losses.mismatch`; empty means none"
    correction_options: Mapping[str, Any] = field(default_factory=dict)
    "options of the correction"
    teacher: str = ""
    "a `local:` policy with the same tokenizer that the distillation losses learn from"
    teacher_direction: Literal["reverse", "forward"] = "reverse"
    "of `dense_distillation`: KL(policy ‖ teacher) or KL(teacher ‖ policy)"
    entropy: float = 0.0
    "coefficient of the entropy bonus"
    entropy_shaping: float = 0.0
    "of the entropy that is added to advantages, at most half of each; see `losses.penalties.entropy_shaped`"
    kl: float = 0.0
    "coefficient of the k3 penalty to the initial policy"
    next_observation: float = 0.0
    "coefficient of predicting what the environment answers, see `losses.supervised.next_observation`"

    def __post_init__(self) -> None:
        _at_least(self, "loss", 0, "horizon", "proximal_decay")
        _at_least(self, "loss", 0, "entropy", "entropy_shaping", "kl", "next_observation")
        if self.proximal_decay >= 1:
            raise ConfigError(f"loss.proximal_decay must be below 1, got {self.proximal_decay!r}")
        if self.correction_options and not self.correction:
            raise ConfigError("loss.correction_options are given, and no loss.correction")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserConfig:
    """AdamW and how a batch is cut."""

    lr: float = 4e-4
    warmup: int = 0
    "updates of linear warm-up"
    schedule: Literal["constant", "linear", "cosine", "wsd", "inverse_sqrt"] = "constant"
    "what the learning rate does after the warm-up; `wsd` stays and falls by a cosine over the last `decay_updates`"
    min_lr_share: float = 0.0
    "of `lr`, where linear, cosine and wsd end"
    decay_updates: int = 0
    "of `wsd`: updates over which the rate falls, the last ones of the run"
    ess_base: float = 0.0
    "VCPO: a step whose rollouts have an effective share E of stale weights gets the rate times √min(1, E/ess_base); 1 in the source, 0 leaves it alone; needs loss.proximal"
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
    "tokens in one forward, padding included; smaller needs less memory and changes nothing else"
    checkpointing: bool = False
    "compute activations again in the backward instead of keeping them: less memory, a third more time"
    layout: Literal["flat", "packed"] = "flat"
    "`packed` computes what rows share once; the update is the same to rounding (see `trainers.packing`)"

    def __post_init__(self) -> None:
        _at_least(self, "optimiser", 0, "lr", "warmup", "weight_decay", "beta1", "beta2", "grad_clip")
        _at_least(self, "optimiser", 1, "epochs", "minibatches", "micro_tokens")
        if max(self.beta1, self.beta2) >= 1:
            raise ConfigError(f"optimiser.beta1 and beta2 must be below 1, got {self.beta1} and {self.beta2}")
        if not 0 <= self.ess_base <= 1:
            raise ConfigError(f"optimiser.ess_base is a share in [0, 1], got {self.ess_base!r}")
        self._check_schedule()

    def _check_schedule(self) -> None:
        """Refuse numbers that the chosen schedule does not read."""
        _at_least(self, "optimiser", 0, "min_lr_share", "decay_updates")
        if self.min_lr_share > 1:
            raise ConfigError(f"optimiser.min_lr_share is a share in [0, 1], got {self.min_lr_share!r}")
        for name, schedules in (("min_lr_share", ("linear", "cosine", "wsd")), ("decay_updates", ("wsd",))):
            if getattr(self, name) and self.schedule not in schedules:
                raise ConfigError(f"optimiser.{name} means nothing to schedule {self.schedule}: leave it out")
        if self.schedule == "wsd" and not self.decay_updates:
            raise ConfigError(
                "optimiser.schedule wsd needs decay_updates: over how many updates the rate falls"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A whole run."""

    run: RunConfig = field(default_factory=RunConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    tasks: TaskConfig = field(default_factory=TaskConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    credit: CreditConfig = field(default_factory=CreditConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], *, where: str = "configuration") -> TrainConfig:
        """Build from nested plain data; what is missing has its default.

        Raises:
            UnknownName: for a section or field that does not exist.
            ConfigError: for a value of the wrong type or out of range.
        """
        sections = get_type_hints(cls)
        made: dict[str, Any] = {}
        for name, values in data.items():
            if name not in sections:
                raise unknown_name(f"section of {where}", name, sections)
            made[name] = _section(sections[name], values, f"[{name}] of {where}")
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
            target[keys[-1]] = parse_value(text.strip())
        return self.from_mapping(data, where="--set")

    def to_mapping(self) -> dict[str, Any]:
        """Nested plain data; fields that are None are left out, as TOML has no null."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}


def _section(cls: type[Any], values: Any, where: str) -> Any:
    """Build dataclass `cls` from `values`, each checked against the type that the field is declared with."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be a table, got {values!r}")
    hints = get_type_hints(cls)
    made = {
        # from_mapping names the nearest field where there is none of this name.
        name: _typed(hints[name], value, f"{where}, {name}") if name in hints else value
        for name, value in values.items()
    }
    return from_mapping(cls, made, where=where)


def _typed(hint: Any, value: Any, where: str) -> Any:
    """`value` as a field of type `hint` takes it."""
    if isinstance(hint, UnionType):  # X | None: what is None is left out of a file
        hint = get_args(hint)[0]
    if dataclasses.is_dataclass(hint):
        return _section(hint, value, where)  # type: ignore[arg-type]
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise unknown_name(f"value of {where}:", str(value), get_args(hint))
        return value
    if hint is float and type(value) is int:
        return float(value)
    plain = get_origin(hint) or hint
    if isinstance(value, plain) and isinstance(value, bool) == (plain is bool):
        return value
    wanted = "a table" if plain is Mapping else plain.__name__
    raise ConfigError(f"{where} must be {wanted}, got {value!r} ({type(value).__name__})")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: _plain(v) for name, v in pairs if v is not None}
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return value


def _at_least(config: Any, section: str, least: float, *names: str) -> None:
    """Refuse numbers below `least`, and those that are not finite."""
    for name in names:
        value = getattr(config, name)
        if not least <= value < math.inf:
            raise ConfigError(f"{section}.{name} must be finite and at least {least}, got {value!r}")
