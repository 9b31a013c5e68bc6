"""Names: what exists can be made in every documented way; what does not is answered with the nearest that does."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import gymnasium
import pytest

import turngym
from turngym import registry
from turngym.envs import register_all
from turngym.envs.base import TurnEnv
from turngym.errors import ConfigError, MissingDependency, UnknownName
from turngym.registry import Registry, list_envs, make, register
from turngym.types import Reply


class Echo(TurnEnv):
    """Says what it hears."""

    def __init__(self, *, prefix: str = "", render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.prefix = prefix

    def start(self, options: object) -> Reply:
        return Reply("hello")

    def act(self, action: str) -> Reply:
        return Reply(self.prefix + action)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations of a test end with it."""
    monkeypatch.setattr(registry, "_ENVS", dict(registry._ENVS))
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))


def test_an_environment_is_made_bare_with_its_forks() -> None:
    env = make("turngym/Corridor-v0", rooms=5)
    assert type(env).__name__ == "Corridor"
    assert env.spec is not None
    assert env.spec.id == "turngym/Corridor-v0"
    env.reset(seed=0)
    assert env.fork()[0].state_key() == env.state_key()


def test_gymnasium_makes_the_same_environments() -> None:
    wrapped = gymnasium.make("turngym/Corridor-v0")
    text, _ = wrapped.reset(seed=3)
    assert text == gymnasium.make("turngym:turngym/Corridor-v0").reset(seed=3)[0]
    assert text == make("turngym/Corridor-v0").reset(seed=3)[0]


def test_gymnasium_makes_vectors_of_them() -> None:
    envs = gymnasium.make_vec("turngym/Corridor-v0", num_envs=3)
    texts, _ = envs.reset(seed=7)
    assert texts == tuple(make("turngym/Corridor-v0").reset(seed=7 + i)[0] for i in range(3))
    texts, rewards, *_ = envs.step(("x", "y", "z"))
    assert len(texts) == 3
    assert rewards.tolist() == [0, 0, 0]
    envs.close()


def test_vectors_in_processes_refuse_shared_memory_and_work_without_it() -> None:
    with pytest.raises(ValueError, match="shared_memory=False"):
        gymnasium.make_vec("turngym/Corridor-v0", num_envs=1, vectorization_mode="async")
    envs = gymnasium.make_vec(
        "turngym/Corridor-v0", num_envs=2, vectorization_mode="async", vector_kwargs={"shared_memory": False}
    )
    texts, _ = envs.reset(seed=7)
    assert texts[1] == make("turngym/Corridor-v0").reset(seed=8)[0]
    envs.close()


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("turngym/Coridor-v0", "turngym/Corridor-v0"),
        ("turngym/corridor-v0", "turngym/Corridor-v0"),
        ("Corridor-v0", "turngym/Corridor-v0"),
        ("Corridor", "turngym/Corridor-v0"),
        ("turngym/Corridor-v9", "turngym/Corridor-v0"),
        ("gym/Mastermind-v3", "turngym/Mastermind-v0"),
        ("turngym/Taxi-v3", "turngym/Taxi-v4"),
    ],
)
def test_an_unknown_id_names_the_nearest(asked: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match=f"Did you mean '{nearest}'"):
        make(asked)


def test_an_unknown_id_names_the_newest_version_of_the_nearest(clean: None) -> None:
    for version in (1, 10, 2):
        register(f"lab/Echo-v{version}", f"{__name__}:Echo")
    with pytest.raises(UnknownName, match=r"Did you mean 'lab/Echo-v10'\?"):
        make("lab/Ecko-v3")


def test_an_id_like_nothing_is_only_unknown() -> None:
    with pytest.raises(UnknownName, match=r"unknown environment 'zzzzzz'\. `turngym list`"):
        make("zzzzzz")


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"option of Corridor 'room'\. Did you mean 'rooms'"):
        make("turngym/Corridor-v0", room=3)


def test_other_packages_register_their_own(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mylab", sys.modules[__name__])
    register("mylab/Echo-v0", "mylab:Echo", kwargs={"prefix": "> "})
    for env in (make("mylab/Echo-v0"), make("mylab:mylab/Echo-v0"), gymnasium.make("mylab/Echo-v0")):
        env.reset()
        assert env.step("hi")[0] == "> hi"
    row = next(row for row in list_envs() if row.id == "mylab/Echo-v0")
    assert (row.family, row.forking, row.description, row.available) == (
        "mylab",
        "none",
        "Says what it hears.",
        True,
    )


def test_other_packages_are_found_by_their_entry_points(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"turngym.envs": {"mylab/Echo-v0": f"{__name__}:Echo"}}
    monkeypatch.setattr(registry, "entry_points", lambda group: found.get(group, {}))
    assert isinstance(make("mylab/Echo-v0"), Echo)


@pytest.mark.parametrize("env_id", ["Echo", "Echo-v0", "lab/Echo", "lab/Echo-vx", "a b/Echo-v0"])
def test_an_id_needs_a_namespace_and_a_version(env_id: str) -> None:
    with pytest.raises(ConfigError, match="namespace/Name-vN"):
        register(env_id, "mylab:Echo")


def test_an_id_stands_for_one_thing(clean: None) -> None:
    register("lab/Echo-v0", f"{__name__}:Echo")
    register("lab/Echo-v0", f"{__name__}:Echo")
    with pytest.raises(ConfigError, match="registered already"):
        register("lab/Echo-v0", f"{__name__}:Echo", kwargs={"prefix": "x"})
    register_all()


def test_what_is_no_turn_env_is_refused(clean: None) -> None:
    register("lab/Pole-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    with pytest.raises(ConfigError, match="not a turngym"):
        make("lab/Pole-v0")


def test_a_missing_package_names_the_extra(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("textworld", "textarena"):
        monkeypatch.setitem(sys.modules, module, None)
    for env_id, extra in (("turngym/TextWorld-v0", "textworld"), ("turngym/TextArena-2048-v0", "textarena")):
        with pytest.raises(MissingDependency, match=rf"pip install 'turngym\[{extra}\]'"):
            make(env_id)


def test_the_list_says_what_to_install(clean: None) -> None:
    register("lab/Echo-v0", f"{__name__}:Echo", requires="no_such_module", extra="echo")
    rows = {row.id: row for row in list_envs()}
    assert not rows["lab/Echo-v0"].available
    assert rows["lab/Echo-v0"].install == "pip install 'turngym[echo]'"
    assert rows["turngym/Corridor-v0"].available
    assert rows["turngym/Corridor-v0"].family == "text"
    assert rows["turngym/TextArena-Mastermind-v0"].family == "adapters"
    assert all(
        row.description and row.forking == "exact" for row in rows.values() if row.id.startswith("turngym/")
    )


def test_a_registry_loads_what_is_asked_for_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    things = Registry[object]("thing", entry_points="some.group")
    monkeypatch.setattr(
        registry, "entry_points", lambda group: {"far": "fractions:Fraction", "near": "no.such:thing"}
    )
    things.add("near", 1)
    things.add("near", 1)
    assert things.get("near") == 1
    assert things.names() == ["far", "near"]
    assert things.get("far").__name__ == "Fraction"  # type: ignore[attr-defined]
    with pytest.raises(UnknownName, match=r"unknown thing 'nea'\. Did you mean 'near'"):
        things.get("nea")
    with pytest.raises(ConfigError, match="registered already"):
        things.add("near", 2)


def run(code: str) -> str:
    source = str(Path(turngym.__file__).parents[1])
    site = sysconfig.get_path("purelib")
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{source}:{site}"},
    )
    return done.stdout.strip()


@pytest.mark.parametrize("order", ["import gymnasium, turngym", "import turngym, gymnasium"])
def test_ids_are_known_to_gymnasium_whichever_is_imported_first(order: str) -> None:
    assert run(f"{order}; print(gymnasium.make('turngym/Corridor-v0').reset(seed=0)[0][:8])") == "Take the"


def test_importing_turngym_imports_neither_gymnasium_nor_anything_optional() -> None:
    heavy = ("gymnasium", "numpy", "torch", "textworld", "textarena", "importlib.metadata")
    assert run(f"import sys, turngym; print([m for m in {heavy!r} if m in sys.modules])") == "[]"


def test_gymnasium_is_not_marked_by_having_been_waited_for() -> None:
    assert (
        run("import turngym, gymnasium; print(type(gymnasium.__spec__.loader).__name__)")
        == "SourceFileLoader"
    )
