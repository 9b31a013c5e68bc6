"""The supervisor's side of a bash session.

Bash can't fork itself into other namespaces, but it can write its state down as a script: variables, functions,
aliases, options, traps, working directory. A fork is a fresh bash that has read that script. Background jobs can't
be written down, so they are named as lost.
"""

from __future__ import annotations

import os
import time

from . import linux
from .jobs import Capture, Usage
from .sessions import GRACE_S, PATIENCE_S, Broken, Lost, children_of, link_of, name_of

TYPE_CHECKING = False  # as in `typing`, which is not loaded for it
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any

_MAX_STATE = 8 << 20
_TIDY_WITHIN_S = 0.25
# Cells arrive on descriptor 3, each ended by a NUL; after each its exit status goes back, ended by a NUL too. A
# cell that opens with byte 1 is the supervisor's, and what it prints goes back ahead of the status.
_LOOP = r"""
while IFS= read -r -d '' -u 3 __turngym_cell; do
  if [[ $__turngym_cell == $'\x01'* ]]; then
    eval "${__turngym_cell:1}" </dev/null >&3
    printf '\0' >&3
  else
    eval "$__turngym_cell" </dev/null 3<&-
  fi
  printf '%s\0' "$?" >&3
done
"""
ARGV = ["/bin/bash", "--noprofile", "--norc", "-c", _LOOP, "bash"]
# Assigning to a read-only variable ends a script, so those are declared only where they are not there yet. Bash's own
# variables are left to bash. `set -e` and `set -u` must not end the dump itself, so they are lifted meanwhile.
_DUMP = (
    "\x01"
    + r"""
__turngym_flags=$-; set +eu
while read -r __turngym_name; do
  case $__turngym_name in
    __turngym_*|BASH*|EPOCH*|COMP_*|RANDOM|SRANDOM|SECONDS|LINENO|FUNCNAME|GROUPS|DIRSTACK|PIPESTATUS|HISTCMD|_) ;;
    *) [[ ${!__turngym_name@a} == *r* ]] && printf 'declare -p %s &>/dev/null || ' "$__turngym_name"
       declare -p "$__turngym_name" ;;
  esac
done < <(compgen -v)
declare -f; alias -p; trap -p; umask -p; printf 'cd -- %q\n' "$PWD"; shopt -p; set +o
case $__turngym_flags in *e*) echo 'set -e'; set -e;; esac
case $__turngym_flags in *u*) echo 'set -u'; set -u;; esac
"""
)


class BashSession:
    """A live bash session."""

    language = "bash"

    def __init__(
        self, control: socket, out: Capture, err: Capture, usage: Usage, *, keeper: int, report: int
    ) -> None:
        self.control = control
        self.out = out
        self.err = err
        self.usage = usage
        self.keeper = keeper
        self.report = report
        self.call: int | None = None
        self.started = 0.0
        self.deadline = 0.0
        self.interrupted = False
        self.alive = True
        self._buffer = b""

    def fileno(self) -> int:
        """For selectors."""
        return self.control.fileno()

    @property
    def first(self) -> int:
        """The first process of the session's PID namespace."""
        return self.keeper

    def begin(self, call: int, code: bytes, timeout_s: float) -> None:
        """Start a cell."""
        self.call = call
        self.started = time.monotonic()
        self.deadline = self.started + timeout_s
        self.interrupted = False
        self._tell(code)

    def pump(self) -> list[dict[str, Any]]:
        """The cells that have ended, each with its status.

        Raises:
            Broken: bash has ended.
        """
        data = self.control.recv(1 << 16)
        if not data:
            raise Broken("the shell has ended")
        self._buffer += data
        *statuses, self._buffer = self._buffer.split(b"\0")
        return [{"status": int(word) if word.isdigit() else 1} for word in statuses]

    def overdue(self, now: float) -> bool:
        """At the deadline end what bash waits for, but not bash; True where that did not help in time."""
        if self.interrupted:
            return now > self.deadline
        self.interrupted = True
        self.deadline = now + GRACE_S
        for shell in children_of(self.keeper):
            for child in children_of(shell):
                os.kill(child, linux.SIGKILL)
        return False

    def state(self) -> bytes:
        """A script that brings a fresh bash into the present state.

        Raises:
            Lost: there are background jobs, or open descriptors that a script can't carry.
            Broken: bash does not answer.
        """
        self._check_carriable()
        self._tell(_DUMP.encode())
        data = b""
        deadline = time.monotonic() + PATIENCE_S
        while data.count(b"\0") < 2:
            if len(data) > _MAX_STATE or not linux.wait_readable(
                [self.fileno()], deadline - time.monotonic()
            ):
                raise Broken("the shell did not write its state down")
            chunk = self.control.recv(1 << 16)
            if not chunk:
                raise Broken("the shell has ended")
            data += chunk
        return data.split(b"\0")[0]

    def restore(self, state: bytes) -> None:
        """Run the script that another session's `state` returned.

        Raises:
            Broken: bash does not come back from it.
        """
        self._tell(state)
        deadline = time.monotonic() + PATIENCE_S
        while not linux.wait_readable([self.fileno()], deadline - time.monotonic()) or not self.pump():
            if time.monotonic() > deadline:
                raise Broken("the shell did not take its state back")
        for capture in (self.out, self.err):
            capture.pump()
            capture.take()  # whatever it printed is of no concern to the next cell

    def _check_carriable(self) -> None:
        """Look for what a script can't carry; a while longer, as bash answers before it has put its descriptors back."""
        deadline = time.monotonic() + _TIDY_WITHIN_S
        while lost := self._lost():
            if time.monotonic() > deadline:
                raise Lost(lost)
            time.sleep(0.005)

    def _lost(self) -> list[str]:
        lost = []
        for shell in children_of(self.keeper):
            lost += [f"job {pid} ({name_of(pid)})" for pid in children_of(shell)]
            for name in os.listdir(f"/proc/{shell}/fd"):
                if name not in {"0", "1", "2", "3"}:
                    lost.append(f"descriptor {name} ({link_of(f'/proc/{shell}/fd/{name}')})")
        shells = children_of(self.keeper)
        return lost + [f"process {pid} ({name_of(pid)})" for pid in shells[1:]]

    def kill(self) -> None:
        """End the session with everything that it started."""
        if not self.alive:
            return
        self.alive = False
        os.kill(self.keeper, linux.SIGKILL)
        os.waitpid(self.keeper, 0)
        os.close(self.report)
        self.control.close()
        self.out.close()
        self.err.close()

    def _tell(self, code: bytes) -> None:
        self.control.settimeout(PATIENCE_S)
        try:
            self.control.sendall(code + b"\0")
        except OSError as error:
            raise Broken(str(error)) from error
        finally:
            self.control.settimeout(None)
