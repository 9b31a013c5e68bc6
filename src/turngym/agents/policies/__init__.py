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
from pathlib import Path
from typing import Any

from turngym.agents.policies.scripted import Mixture, Oracle
from turngym.agents.policy import Policy
from turngym.errors import ConfigError, unknown_name
from turngym.options import call_with, parse_options
from turngym.registry import Registry, import_extra

MakePolicy = Callable[..., Policy]
"""Called with the NAME of a spec and its options as keywords."""

KINDS = Registry[MakePolicy]("kind of policy", entry_points="turngym.policies")

__all__ = ["KINDS", "MakePolicy", "load_policy"]


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
            f"a policy is written KIND:NAME, got {spec!r}. Did you mean {near[0]!r}? Kinds: {', '.join(KINDS.names())}"
        )
    options = parse_options(query.split("&") if query else (), where=f"policy {spec!r}")
    policy = KINDS.get(kind)(name, **options)
    policy.name = spec  # options change results, so they belong to the name under which results are kept
    return policy


def _epsilon(*, epsilon: float) -> Policy:
    if not isinstance(epsilon, (int, float)):
        raise ConfigError(f"epsilon is a probability, got {epsilon!r}")
    return Mixture(float(epsilon))


def _oracle() -> Policy:
    return Oracle()


def _random() -> Policy:
    return Mixture(1.0)


_SCRIPTED: Mapping[str, MakePolicy] = {"oracle": _oracle, "random": _random, "epsilon": _epsilon}
_SHIPPED = ("sprout",)


def _scripted(name: str, **options: Any) -> Policy:
    if name not in _SCRIPTED:
        raise unknown_name("scripted policy", name, _SCRIPTED)
    policy: Policy = call_with(_SCRIPTED[name], options, what=f"policy 'scripted:{name}'")
    return policy


def _local(name: str, **options: Any) -> Policy:
    if name not in _SHIPPED and not Path(name).exists():
        misspelt = difflib.get_close_matches(name, _SHIPPED, cutoff=0.7)
        if misspelt:
            hint = "A folder or a hub name (org/name) works, too."
            raise unknown_name("local model", name, _SHIPPED, hint=hint)
    local = import_extra("turngym.agents.policies.local", extra="train")
    policy: Policy = call_with(local.LocalPolicy.load, options, what=f"policy 'local:{name}'", given=(name,))
    return policy


KINDS.add("scripted", _scripted)
KINDS.add("local", _local)
