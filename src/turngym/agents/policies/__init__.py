"""Policies by name: `load_policy("local:sprout")`.

    scripted:oracle                    the environment's own optimal policy
    scripted:random                    random well-formed actions
    scripted:epsilon?epsilon=0.3       random with that probability, optimal otherwise
    local:sprout                       the model that ships with turngym
    local:./folder, local:org/name     any Hugging Face causal LM
    KIND:NAME?option=value&option=…    another kind, from the entry points `turngym.policies` of an installed package

An entry point's name is the kind; it is called with NAME and the options. What a kind needs (torch, an engine) is
imported when a policy of that kind is loaded, and not before.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from turngym.agents.policies.scripted import Mixture, Oracle
from turngym.agents.policy import Policy
from turngym.errors import ConfigError, MissingDependency, unknown_name
from turngym.options import call_with, parse_options

ENTRY_POINTS = "turngym.policies"

__all__ = ["ENTRY_POINTS", "known_kinds", "load_policy"]


def load_policy(spec: str) -> Policy:
    """Make the policy that `spec` names; see the module for how specs are written.

    Raises:
        UnknownName: for a kind, a name or an option that does not exist; names the nearest.
        MissingDependency: where the kind needs a package that is not installed; says what to install.
        ConfigError: for a spec that is malformed, or an option that is missing or out of range.

    >>> load_policy("scripted:epsilon?epsilon=0.3").name
    'scripted:epsilon?epsilon=0.3'
    """
    kind, colon, rest = spec.partition(":")
    name, _, query = rest.partition("?")
    if not colon or not name:
        known = [*(f"scripted:{n}" for n in _SCRIPTED), *(f"local:{n}" for n in _SHIPPED)]
        near = difflib.get_close_matches(spec, known, n=1, cutoff=0.4) or ["local:sprout"]
        raise ConfigError(
            f"a policy is written KIND:NAME, got {spec!r}. Did you mean {near[0]!r}? Kinds: {_listing()}"
        )
    options = parse_options(query.split("&") if query else (), where=f"policy {spec!r}")
    if kind == "scripted":
        return _scripted(name, options)
    if kind == "local":
        return _local(name, options)
    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if kind not in found:
        raise unknown_name("kind of policy", kind, known_kinds())
    policy: Policy = found[kind].load()(name, **options)
    return policy


def known_kinds() -> list[str]:
    """Every kind that a spec can name here."""
    return sorted({"scripted", "local", *(point.name for point in entry_points(group=ENTRY_POINTS))})


def _listing() -> str:
    return ", ".join(known_kinds())


def _epsilon(*, epsilon: float) -> Policy:
    if not isinstance(epsilon, (int, float)):
        raise ConfigError(f"epsilon is a probability, got {epsilon!r}")
    return Mixture(float(epsilon))


def _oracle() -> Policy:
    return Oracle()


def _random() -> Policy:
    return Mixture(1.0)


_SCRIPTED: Mapping[str, Callable[..., Policy]] = {"oracle": _oracle, "random": _random, "epsilon": _epsilon}
_SHIPPED = ("sprout",)


def _scripted(name: str, options: Mapping[str, Any]) -> Policy:
    if name not in _SCRIPTED:
        raise unknown_name("scripted policy", name, _SCRIPTED)
    policy: Policy = call_with(_SCRIPTED[name], options, what=f"policy 'scripted:{name}'")
    return policy


def _local(name: str, options: Mapping[str, Any]) -> Policy:
    if (
        name not in _SHIPPED
        and not Path(name).exists()
        and difflib.get_close_matches(name, _SHIPPED, cutoff=0.7)
    ):
        raise unknown_name(
            "local model", name, _SHIPPED, hint="A folder or a hub name (org/name) works, too."
        )
    try:
        from turngym.agents.policies.local import LocalPolicy  # noqa: PLC0415 - torch loads here, and only here
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "turngym":
            raise
        raise MissingDependency(f"a local policy needs {package}: pip install 'turngym[train]'") from error
    policy: Policy = call_with(LocalPolicy.load, options, what=f"policy 'local:{name}'", given=(name,))
    return policy
