"""Every error that turngym raises on purpose.

    TurngymError
    ├── ConfigError (ValueError)          an option, field or argument can't be honoured
    │   ├── UnknownName (LookupError)     an id, option or field that does not exist; names the nearest
    │   ├── MissingDependency (ImportError)  an optional package is not installed; names the extra
    │   └── TemplateError                 a chat template that can't be rendered append-only
    ├── TreeError (ValueError)            a record that breaks a rule of `tree.Tree`
    ├── CreditError (ValueError)          a tree that a credit rule can't score
    ├── CheckpointError                   a checkpoint that is incomplete or of another run
    └── Fault                             something the policy could not cause
        ├── EnvFault                      the environment, its sandbox, browser or service broke
        │   └── ForkDiverged              a fork is not in the state of its parent
        └── HarnessFault                  our own code, the engine or the network broke

**A fault is never a reward.** What the policy can cause (a malformed call, a timeout of its own command) is
answered by the environment and counts as its own failure. What it can't cause is a `Fault`: the sample is
retried or refilled, it is counted under `faults/*`, and it never enters a statistic.

Each class is also the standard exception that a caller would expect, and survives pickling.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TurngymError(Exception):
    """Root of everything that turngym raises on purpose."""


class ConfigError(TurngymError, ValueError):
    """An option, a field or an argument that can't be honoured. Raised at the start, never in mid-run."""


class UnknownName(ConfigError, LookupError):
    """A name that nobody registered. The message names the nearest one that exists."""


class MissingDependency(ConfigError, ImportError):
    """An optional package is needed and not installed."""


class TemplateError(ConfigError):
    """A chat template that can't be rendered append-only, or a tokenizer that lacks what rendering needs."""


class TreeError(TurngymError, ValueError):
    """A node, an array or a file that breaks a rule of the record."""


class CreditError(TurngymError, ValueError):
    """A tree that a credit rule can't score; names the rule, the tree and the field."""


class CheckpointError(TurngymError, RuntimeError):
    """A checkpoint that is incomplete, unreadable or written by another configuration."""


class Fault(TurngymError, RuntimeError):
    """Something that the policy could not cause. It voids the sample; it is never scored."""


class EnvFault(Fault):
    """The environment (or what it runs in) broke."""


class ForkDiverged(EnvFault):
    """A fork differs from its parent. `turn` is the first turn that differs (0 is the reset)."""

    def __init__(self, message: str, *, turn: int) -> None:
        super().__init__(message)
        self.turn = turn

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_fork_diverged, (str(self), self.turn)


def _rebuild_fork_diverged(message: str, turn: int) -> ForkDiverged:
    return ForkDiverged(message, turn=turn)


class HarnessFault(Fault):
    """Our own code, the inference engine or the network broke."""


def unknown_name(kind: str, name: str, known: Iterable[str], *, hint: str = "") -> UnknownName:
    """Build an `UnknownName` that names the nearest known name.

    Args:
        kind: what was looked up, in the singular ("environment", "credit rule", "option of budget").
        name: what was asked for.
        known: every name that would have worked.
        hint: a sentence to add ("Install `turngym[textworld]` for it.").

    >>> str(unknown_name("credit rule", "gpro", ["grpo", "rloo"]))
    "unknown credit rule 'gpro'. Did you mean 'grpo'? Known: grpo, rloo."
    """
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    question = f" Did you mean {nearest[0]!r}?" if nearest else ""
    listing = ", ".join(names[:24]) + (", …" if len(names) > 24 else "")
    listing = f" Known: {listing}." if names else ""
    return UnknownName(f"unknown {kind} {name!r}.{question}{listing}{' ' + hint if hint else ''}")
