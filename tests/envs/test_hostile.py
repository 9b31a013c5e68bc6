"""Every registered environment keeps the contract, and answers 1,000 random and 1,000 hostile actions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from conftest import require
from engines import require_sandbox
from turngym import registry
from turngym.envs import _BENCHMARKS
from turngym.envs.adapters.worker_env import WorkerEnv
from turngym.envs.base import TurnEnv
from turngym.envs.checker import check_env
from turngym.envs.hostile import CORPUS, hostile_texts, random_texts
from turngym.envs.tool.sandboxed import SandboxEnv
from turngym.registry import list_envs, load, make
from worker_packages import require_worker

IDS = [row.id for row in list_envs() if row.id.startswith("turngym/")]
SANDBOXED = ["turngym/Shell-v0", "turngym/PythonTasks-v0", "turngym/Repair-v0"]
QUICK = [each for each in IDS if "Text" not in each and each not in (*_BENCHMARKS, *SANDBOXED)]
"Neither TextWorld nor TextArena, nor what runs in a worker or a sandbox."
SAMPLE = [
    "turngym/TextWorld-v0",
    "turngym/TextArena-Mastermind-v0",
    "turngym/TextArena-LightsOut-v0",
    "turngym/BFCL-v4",
    "turngym/AgentDojo-v1",
    "turngym/Tau2-Telecom-v0",
]
"Of the slower ones, what every run of the tests looks at, at a smaller number of actions."


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled TextWorld games; two are enough, and each takes a second."""
    return tmp_path_factory.mktemp("textworld")


def factory(env_id: str, games: Path) -> Callable[[], TurnEnv]:
    entry = registry._ENVS[env_id]
    if entry.requires is not None:
        require(entry.requires, f"turngym[{entry.extra}]")
    if issubclass(env_class := load(entry.entry_point), WorkerEnv):
        require_worker(env_class.slot.pins)
    if issubclass(env_class, SandboxEnv):
        require_sandbox()
    if env_id == "turngym/TextWorld-v0":
        return partial(make, env_id, games=2, cache_dir=games)
    return partial(make, env_id)


@pytest.mark.parametrize("env_id", QUICK)
def test_every_environment_keeps_the_contract(env_id: str, games: Path) -> None:
    report = check_env(factory(env_id, games), actions=1000)
    assert report.ok, str(report)


@pytest.mark.parametrize("env_id", SAMPLE)
def test_slower_environments_keep_the_contract(env_id: str, games: Path) -> None:
    report = check_env(factory(env_id, games), turns=4, actions=len(CORPUS))
    assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [env_id for env_id in IDS if env_id not in QUICK])
def test_every_slower_environment_keeps_it_for_as_long(env_id: str, games: Path) -> None:
    report = check_env(factory(env_id, games), seed=1, actions=1000)
    assert report.ok, str(report)


def test_the_corpus_has_what_breaks_parsers() -> None:
    texts = list(CORPUS)
    assert max(len(t) for t in texts) >= 1_000_000
    assert any(t.startswith("[" * 10_000) for t in texts)
    assert any("\ud800" in t for t in texts)
    assert any("\0" in t for t in texts)
    assert any(t.startswith('{"') and not t.endswith("}") for t in texts)


@pytest.mark.parametrize("texts", [hostile_texts, random_texts])
def test_texts_follow_from_the_generator(texts: Callable[[np.random.Generator, int], object]) -> None:
    one, two = (list(texts(np.random.default_rng(3), 200)) for _ in range(2))  # type: ignore[call-overload]
    assert len(one) == 200
    assert one == two
    assert list(texts(np.random.default_rng(3), 5)) == one[:5]  # type: ignore[call-overload]
