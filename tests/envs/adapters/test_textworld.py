"""TextWorld: generated games, exact forks, and an interpreter that the policy can't reach."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import require
from turngym.envs.adapters import textworld as adapter
from turngym.envs.adapters.textworld import GameKind, TextWorld, compiled
from turngym.errors import ConfigError, EnvFault, UnknownName


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("textworld", "turngym[textworld]")
    return tmp_path_factory.mktemp("games")


@pytest.fixture
def env(games: Path) -> Any:
    with closing(TextWorld(games=1, cache_dir=games)) as env:
        env.reset(seed=0)
        yield env


def solve(env: TextWorld) -> tuple[float, bool, int]:
    """Return, success and turns of the optimal policy."""
    total, turns = 0.0, 0
    while True:
        _, reward, terminated, truncated, info = env.step(env.optimal_action())
        total, turns = total + reward, turns + 1
        if terminated or truncated:
            return total, info["success"], turns


def test_the_optimal_policy_finishes_the_quest_in_its_length(env: TextWorld) -> None:
    assert solve(env) == (1.0, True, 4)


def test_the_text_is_the_games_and_nothing_else(env: TextWorld) -> None:
    for text in (env.observation, env.step("look")[0], env.step("inventory")[0]):
        assert "<score>" not in text
        assert ">" not in text
        assert "$$" not in text
        assert text == text.strip()


def test_the_same_seed_writes_the_same_game_anywhere(env: TextWorld, tmp_path: Path) -> None:
    with closing(TextWorld(games=1, cache_dir=tmp_path)) as other:
        assert other.reset(seed=0)[0] == env.observation
        assert {f.suffix for f in tmp_path.iterdir()} == {".z8", ".json"}
        assert other.step("look") == env.step("look")


def test_train_and_test_games_differ(env: TextWorld, games: Path) -> None:
    with closing(TextWorld(games=1, fold="test", cache_dir=games)) as other:
        assert other.reset(seed=0)[0] != env.observation


def test_a_fork_can_win_where_its_parent_wandered_off(env: TextWorld) -> None:
    env.step(env.optimal_action())
    (child,) = env.fork()
    with closing(child):
        for _ in range(3):
            env.step("look")
        assert solve(child) == (1.0, True, 3)
    env.step(env.optimal_action())
    assert solve(env)[1]


def test_a_snapshot_of_another_game_loads_that_game(games: Path) -> None:
    with closing(TextWorld(games=2, cache_dir=games)) as env:
        first: dict[int, Any] = {}
        for seed in range(6):
            text, _ = env.reset(seed=seed)
            first.setdefault(env.get_state().game, (text, env.snapshot()))
        assert set(first) == {0, 1}
        for text, snapshot in first.values():
            env.restore(snapshot)
            assert env.observation == text
            assert solve(env)[1]


@pytest.mark.parametrize(
    "said",
    [
        *("save", "SAVE", "restore", "restart", "quit", "q", "undo", "script", "transcript"),
        *("tw-trace-actions", "tw-extra-infos score", "look then save", "then save", "look then  then quit"),
    ],
)
def test_commands_of_the_interpreter_are_not_run(
    env: TextWorld, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = env.get_state()
    text, reward, *_ = env.step(said)
    after = env.get_state()
    assert "is no command of the game" in text
    assert reward == 0
    assert np.array_equal(before.machine[0], after.machine[0])
    assert after.turn == before.turn + 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "said", ["", "look. save", "look, save", "look\0save", "x" * 101, "léok", "\ud800", "look;"]
)
def test_what_is_no_plain_command_is_not_run(env: TextWorld, said: str) -> None:
    before = env.get_state()
    assert env.step(said)[0].startswith("One command a turn")
    assert np.array_equal(before.machine[0], env.get_state().machine[0])


def test_a_command_may_come_in_a_tool_call_and_in_any_case(env: TextWorld) -> None:
    (child,) = env.fork()
    with closing(child):
        said = '<tool_call>{"name": "act", "arguments": {"action": "INVENTORY"}}</tool_call>'
        assert child.step(said)[0] == env.step("inventory")[0]


def test_commands_that_work_are_listed_on_request(games: Path) -> None:
    with closing(TextWorld(games=1, admissible=True, cache_dir=games)) as env:
        env.reset(seed=0)
        listed = env.observation.rpartition("Commands that work here: ")[2].rstrip(".").split(", ")
        assert env.optimal_action() in listed
        assert env.random_action(np.random.default_rng(0)) in listed
        assert "look" in listed


def test_the_last_step_alone_is_told_on_request(games: Path) -> None:
    with (
        closing(TextWorld(games=1, cache_dir=games)) as full,
        closing(TextWorld(games=1, instructions="last", cache_dir=games)) as last,
    ):
        assert len(last.reset(seed=0)[0]) < len(full.reset(seed=0)[0])


def test_running_out_of_turns_is_a_failure(games: Path) -> None:
    with closing(TextWorld(games=1, max_turns=2, cache_dir=games)) as env:
        env.reset(seed=0)
        assert env.step("look")[3] is False
        *_, truncated, info = env.step("look")
        assert truncated
        assert info["success"] is False


def test_processes_may_race_for_a_game(tmp_path: Path) -> None:
    require("textworld", "turngym[textworld]")
    kind, paths = GameKind(1, 1, 1, "all"), []
    threads = [threading.Thread(target=lambda: paths.append(compiled(kind, 5, tmp_path))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 1
    assert paths[0].exists()


def test_a_build_that_fails_leaves_nothing_and_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    textworld = require("textworld", "turngym[textworld]")

    def broken(game: Any, options: Any) -> None:
        Path(options.path).with_suffix(".json").write_text("half", encoding="utf-8")
        raise OSError("disk full")

    monkeypatch.setattr(textworld.generator, "compile_game", broken)
    env = TextWorld(games=1, cache_dir=tmp_path)
    with pytest.raises(EnvFault, match="disk full"):
        env.reset(seed=0)
    assert not list(tmp_path.iterdir())


def test_options_that_no_game_can_have_are_refused() -> None:
    require("textworld", "turngym[textworld]")
    with pytest.raises(ConfigError, match="at least 1"):
        TextWorld(rooms=0)
    with pytest.raises(UnknownName, match="Did you mean 'train'"):
        TextWorld(fold="trian")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="instructions"):
        TextWorld(instructions="some")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="reset option"):
        TextWorld().reset(options={"seed": 1})


def test_games_are_kept_where_caches_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert adapter._default_folder() == tmp_path / "turngym" / "textworld"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert adapter._default_folder() == Path.home() / ".cache" / "turngym" / "textworld"
