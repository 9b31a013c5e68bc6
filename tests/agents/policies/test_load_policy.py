"""Policies are found by name, and a wrong name is answered with the nearest right one."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace
from typing import Any

import pytest

from turngym.agents.policies import KINDS, load_policy
from turngym.agents.policies.scripted import Mixture, Oracle
from turngym.errors import ConfigError, MissingDependency, UnknownName


def test_scripted_policies_by_name() -> None:
    assert isinstance(load_policy("scripted:oracle"), Oracle)
    random, mixed = load_policy("scripted:random"), load_policy("scripted:epsilon?epsilon=0.25")
    assert isinstance(random, Mixture)
    assert random.epsilon == 1
    assert isinstance(mixed, Mixture)
    assert mixed.epsilon == 0.25


@pytest.mark.parametrize("spec", ["scripted:oracle", "scripted:random", "scripted:epsilon?epsilon=0.25"])
def test_a_policy_is_named_as_it_is_asked_for(spec: str) -> None:
    assert load_policy(spec).name == spec


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("scripted:orcale", "unknown scripted policy 'orcale'. Did you mean 'oracle'?"),
        ("scritped:oracle", "unknown kind of policy 'scritped'. Did you mean 'scripted'?"),
        ("local:sprot", "unknown local model 'sprot'. Did you mean 'sprout'?"),
        (
            "scripted:epsilon?epslion=0.3",
            "unknown option of policy 'scripted:epsilon' 'epslion'. Did you mean 'epsilon'?",
        ),
        ("scripted:oracle?depth=3", "policy 'scripted:oracle' has no options"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(spec: str, says: str) -> None:
    with pytest.raises(UnknownName) as caught:
        load_policy(spec)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("oracle", "written KIND:NAME, got 'oracle'. Did you mean 'scripted:oracle'?"),
        ("sprout", "Did you mean 'local:sprout'?"),
        ("local:", "written KIND:NAME"),
        ("", "written KIND:NAME"),
        ("scripted:epsilon", "needs the option 'epsilon'"),
        ("scripted:epsilon?epsilon=much", "epsilon = 'much'"),
        ("scripted:epsilon?epsilon=1.5", "epsilon is a probability, got 1.5"),
        ("scripted:epsilon?0.3", "write name=value"),
    ],
)
def test_a_malformed_spec_says_how_to_write_it(spec: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_policy(spec)
    assert says in str(caught.value)


def wall(name: str, **options: Any) -> Any:
    return SimpleNamespace(built=(name, options))


def test_another_package_adds_a_kind_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mirror", f"{__name__}:wall", "turngym.policies")
    found = importlib.metadata.entry_points
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda group: EntryPoints([point]) if group == point.group else found(group=group),
    )
    monkeypatch.setattr(KINDS, "_things", dict(KINDS._things))
    made: Any = load_policy("mirror:wall?size=3")
    assert made.built == ("wall", {"size": 3})
    assert made.name == "mirror:wall?size=3"
    with pytest.raises(UnknownName, match="Did you mean 'mirror'"):
        load_policy("miror:wall")


def test_without_torch_a_local_policy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "local",
        "cached",
        "engine",
        "kv",
        "loading",
        "sampling",
    ):  # as in a process that never loaded them
        monkeypatch.delitem(sys.modules, f"turngym.agents.policies.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency, match=r"torch.* To get it: pip install 'turngym\[train\]'"):
        load_policy("local:sprout")


def test_scripted_policies_load_without_torch() -> None:
    code = "import sys; from turngym.agents.policies import load_policy; load_policy('scripted:oracle'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
