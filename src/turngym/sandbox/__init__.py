"""Isolated machines for agents, that can be frozen, restored and forked while they run.

base         the contract, the limits, the registry of backends
bubblewrap   the default backend
docker       the same behind a container engine, in an image of one's choice
supervised   what these two share; `inside/` is what runs within their walls
engine       the connection to Docker or Podman; `image` makes images, `reaper` ends what an owner leaves
process      `unsafe-process`: the same contract with no isolation at all
interpreter  Python and bash sessions
history      forks by doing everything again, where the live state can't be carried and the caller allows it
lease        no sandbox outlives its owner; `warden` is the process that sees to it
pool         warm sandboxes, reset from a snapshot
selfcheck    the conformance suite and the attacks that every backend has to pass
"""

from turngym.sandbox.base import (
    Backend,
    ExecResult,
    ForkLost,
    Limits,
    Sandbox,
    SandboxLost,
    Snapshot,
    backend,
    backends,
)
from turngym.sandbox.interpreter import CellResult, Interpreter

__all__ = [
    "Backend",
    "CellResult",
    "ExecResult",
    "ForkLost",
    "Interpreter",
    "Limits",
    "Sandbox",
    "SandboxLost",
    "Snapshot",
    "backend",
    "backends",
]
