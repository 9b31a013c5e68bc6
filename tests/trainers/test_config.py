"""A configuration is checked when it is read: names, types, ranges; and it survives the way through a file."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.errors import ConfigError, UnknownName
from turngym.trainers.config import (
    CreditConfig,
    LossConfig,
    OptimiserConfig,
    PolicyConfig,
    RolloutConfig,
    RunConfig,
    TaskConfig,
    TrainConfig,
)
from turngym.types import Budget

SECTIONS: dict[str, Any] = {
    "run": RunConfig,
    "policy": PolicyConfig,
    "tasks": TaskConfig,
    "rollout": RolloutConfig,
    "credit": CreditConfig,
    "loss": LossConfig,
    "optimiser": OptimiserConfig,
}
FIELDS = [(section, f.name) for section, cls in SECTIONS.items() for f in dataclasses.fields(cls)]


def misspelt(name: str) -> str:
    return name[0] + name


# ---------------------------------------------------------------------- names


def test_nothing_gives_the_defaults() -> None:
    assert TrainConfig.from_mapping({}) == TrainConfig()
    assert TrainConfig.from_mapping({"run": {}}) == TrainConfig()


@pytest.mark.parametrize("section", SECTIONS)
def test_an_unknown_section_names_the_nearest(section: str) -> None:
    with pytest.raises(UnknownName, match=f"unknown section of configuration .*Did you mean '{section}'"):
        TrainConfig.from_mapping({misspelt(section): {}})


@pytest.mark.parametrize(("section", "name"), FIELDS)
def test_an_unknown_field_names_the_nearest(section: str, name: str) -> None:
    with pytest.raises(UnknownName, match=rf"option of \[{section}\] .*Did you mean '{name}'"):
        TrainConfig.from_mapping({section: {misspelt(name): 1}})


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Budget)])
def test_an_unknown_field_of_a_budget_names_the_nearest(name: str) -> None:
    with pytest.raises(UnknownName, match=rf"\[rollout\] of configuration, budget .*Did you mean '{name}'"):
        TrainConfig.from_mapping({"rollout": {"budget": {misspelt(name): 1}}})


# ---------------------------------------------------------------------- types and ranges


WRONG: dict[Any, list[Any]] = {
    int: ["3", 2.0, True, [1], {}],
    float: ["0.1", True, [0.1], float("nan"), float("inf"), -float("inf")],
    str: [3, True, ["x"]],
    bool: [1, 0, "true"],
    Mapping: [1, "x", [1]],
    Literal: ["nothing of the kind", 3],
    Budget: [3, "x", [], {"turns": "3"}, {"turns": 2.5}, {"turns": True}, {"wall_time_s": "1"}, {"turns": 0}],
}


@pytest.mark.parametrize(("section", "name"), FIELDS)
def test_a_value_of_the_wrong_type_is_refused_by_name(section: str, name: str) -> None:
    hint = get_type_hints(SECTIONS[section])[name]
    for value in WRONG[get_origin(hint) or hint]:
        with pytest.raises(ConfigError) as caught:
            TrainConfig.from_mapping({section: {name: value}})
        words = str(caught.value)
        assert name in words, words
        assert section in words or "budget" in words, words


@pytest.mark.parametrize(
    ("section", "name"),
    [(s, n) for s, n in FIELDS if get_type_hints(SECTIONS[s])[n] in (int, float)],
)
def test_no_number_may_be_negative(section: str, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        TrainConfig.from_mapping({section: {name: -1}})
    with pytest.raises(ConfigError, match=name):
        SECTIONS[section](**{name: -1})


AT_LEAST_ONE = {
    "run": ["evaluate_every", "checkpoint_every", "keep_checkpoints"],
    "tasks": ["train", "held_out", "attempts"],
    "rollout": ["trees", "live_paths"],
    "optimiser": ["epochs", "minibatches", "micro_tokens"],
}


@pytest.mark.parametrize(
    ("section", "name"),
    [(s, n) for s, n in FIELDS if get_type_hints(SECTIONS[s])[n] in (int, float)],
)
def test_zero_is_refused_exactly_where_it_would_hang_or_divide(section: str, name: str) -> None:
    if name in AT_LEAST_ONE.get(section, []):
        with pytest.raises(ConfigError, match=f"{section}.{name} must be finite and at least 1, got 0"):
            TrainConfig.from_mapping({section: {name: 0}})
    else:
        TrainConfig.from_mapping({section: {name: 0}})


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [("rollout", "max_fault_share", 1.1), ("optimiser", "beta1", 1.0), ("optimiser", "beta2", 1.5)],
)
def test_shares_stay_shares(section: str, name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        TrainConfig.from_mapping({section: {name: value}})


def test_a_choice_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"schedule: 'cosin'\. Did you mean 'cosine'"):
        TrainConfig.from_mapping({"optimiser": {"schedule": "cosin"}})


def test_a_whole_number_does_for_a_fraction() -> None:
    lr = TrainConfig.from_mapping({"optimiser": {"lr": 1}}).optimiser.lr
    assert lr == 1.0
    assert isinstance(lr, float)


@pytest.mark.parametrize("section", [3, "x", [1], None])
def test_a_section_that_is_no_table_is_refused(section: Any) -> None:
    with pytest.raises(ConfigError, match=r"\[run\] of configuration must be a table"):
        TrainConfig.from_mapping({"run": section})


# ---------------------------------------------------------------------- files


def numbers(least: float) -> st.SearchStrategy[Any]:
    return st.floats(least, 1e6, allow_nan=False) | st.integers(int(least), 10**6)


budgets = st.builds(
    Budget,
    turns=st.none() | st.integers(1, 99),
    turn_tokens=st.integers(1, 999),
    context_tokens=st.none() | st.integers(1, 9999),
    wall_time_s=st.none() | st.floats(0.001, 1e6),
)
options = st.dictionaries(
    st.text(min_size=1), st.integers() | st.booleans() | st.text() | st.lists(st.integers()), max_size=3
)
configs = st.builds(
    TrainConfig,
    run=st.builds(RunConfig, seed=st.integers(0, 2**62), updates=st.integers(0, 10**9)),
    policy=st.builds(PolicyConfig, spec=st.text(), lora_alpha=st.floats(0, 1e3)),
    tasks=st.builds(TaskConfig, options=options, folds=st.booleans()),
    rollout=st.builds(RolloutConfig, budget=budgets, plan_options=options, temperature=st.floats(0, 10)),
    optimiser=st.builds(
        OptimiserConfig, lr=st.floats(0, 1), schedule=st.sampled_from(["constant", "linear", "cosine"])
    ),
)


@given(configs)
@settings(max_examples=40)
def test_a_configuration_survives_the_way_through_a_file(config: TrainConfig) -> None:
    text = tomli_w.dumps(config.to_mapping())
    assert TrainConfig.from_mapping(tomllib.loads(text)) == config


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        '[run]\nupdates = 3\n[rollout.budget]\nturns = 8\n[credit]\nrule = "tree"\n', encoding="utf-8"
    )
    config = TrainConfig.load(path)
    assert (config.run.updates, config.rollout.budget, config.credit.rule) == (3, Budget(turns=8), "tree")
    path.write_text("[run]\nupdates = true\n")
    with pytest.raises(ConfigError, match=rf"\[run\] of {path}, updates must be int, got True"):
        TrainConfig.load(path)


@pytest.mark.parametrize("content", [None, b"[run", b"\xff\xfe", b"run = 3"])
def test_a_file_that_can_not_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        TrainConfig.load(path)


# ---------------------------------------------------------------------- overrides


def test_settings_reach_every_depth_and_leave_the_rest() -> None:
    before = TrainConfig()
    after = before.override(
        [
            "run.seed=3",
            "optimiser.lr = 1e-3",
            "credit.rule=tree",
            'policy.spec="local:./my folder"',
            "tasks.folds=false",
            "tasks.options.rooms=5",
            "rollout.plan_options={roots = 4}",
            "rollout.budget.turns=9",
            "rollout.budget.wall_time_s=3",
        ]
    )
    assert after.run == dataclasses.replace(before.run, seed=3)
    assert after.optimiser == dataclasses.replace(before.optimiser, lr=1e-3)
    assert after.credit.rule == "tree"
    assert after.policy.spec == "local:./my folder"
    assert after.tasks == dataclasses.replace(before.tasks, folds=False, options={"rooms": 5})
    assert after.rollout.plan_options == {"roots": 4}
    assert after.rollout.budget == Budget(turns=9, wall_time_s=3.0)
    assert before == TrainConfig()


def test_the_last_setting_wins_and_options_are_kept_beside_each_other() -> None:
    config = TrainConfig().override(["credit.options.a=1", "credit.options.b=2", "credit.options.a=3"])
    assert config.credit.options == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("run.seed", "write section.field=value, got 'run.seed'"),
        ("seed=3", "write section.field=value"),
        ("=3", "write section.field=value"),
        ("run.sed=3", "Did you mean 'seed'"),
        ("rn.seed=3", "Did you mean 'run'"),
        ("run.seed.deep=3", "seed is not a table"),
        ("run.seed=three", "seed must be int, got 'three'"),
        ("run.seed=", "seed must be int"),
        ("optimiser.lr=-1", "lr"),
        ("rollout.budget.turn=3", "Did you mean 'turns'"),
        ("rollout.budget=3", "budget must be a table"),
    ],
)
def test_a_setting_that_can_not_be_applied_says_why(setting: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TrainConfig().override([setting])
