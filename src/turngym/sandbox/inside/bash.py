"""The supervisor's side of a bash session.

Bash can't fork itself into other namespaces, but it can write its state down as a script: variables, functions,
aliases, options, traps, parameters, working directory and directory stack. A fork is a fresh bash that has read that
script, and so is what goes on after a snapshot. `RANDOM` goes on from its last number, the same in all of them.
Background jobs, redirected descriptors and changed limits can't be written down, so they are named as lost.
"""

from __future__ import annotations

import os
import resource
import time

from . import linux
from .jobs import Capture, Usage
from .sessions import GRACE_S, PATIENCE_S, Broken, Lost, children_of, link_of, name_of, redirected

TYPE_CHECKING = False  # as in `typing`, which is not loaded for it
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any

_MAX_STATE = 8 << 20
_LIMITS = {getattr(resource, name): name for name in dir(resource) if name.startswith("RLIMIT_")}
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
# variables are left to bash. `set -e` and `set -u` must not end the dump itself, so they are lifted meanwhile. What
# decides how the rest is read (`shopt`) comes first, and functions before the aliases, which they contain already.
_DUMP = (
    "\x01"
    + r"""
__turngym_flags=$-; set +eu
shopt -p
printf 'cd -- %q\n' "$PWD"
if ((${#DIRSTACK[@]} > 1)); then
  mapfile -t __turngym_dirs < <(dirs -l -p)
  for ((__turngym_i = ${#__turngym_dirs[@]} - 1; __turngym_i > 0; __turngym_i--)); do
    printf 'pushd -n -- %q\n' "${__turngym_dirs[__turngym_i]}"
  done
fi
declare -f; declare -F
while read -r __turngym_name; do
  case $__turngym_name in
    __turngym_*|BASH|BASHOPTS|BASHPID|BASH_ALIASES|BASH_ARGC|BASH_ARGV|BASH_ARGV0|BASH_CMDS|BASH_COMMAND) ;;
    BASH_EXECUTION_STRING|BASH_LINENO|BASH_SOURCE|BASH_SUBSHELL|BASH_VERSINFO|BASH_VERSION) ;;
    EPOCHREALTIME|EPOCHSECONDS|RANDOM|SRANDOM|SECONDS|LINENO|FUNCNAME|GROUPS|DIRSTACK|PIPESTATUS|HISTCMD|_) ;;
    *) [[ ${!__turngym_name@a} == *r* ]] && printf 'declare -p %s &>/dev/null || ' "$__turngym_name"
       declare -p "$__turngym_name" ;;
  esac
done < <(compgen -v)
printf 'SECONDS=%d\nRANDOM=%d\n' "$SECONDS" "$RANDOM"
alias -p; trap -p; umask -p
printf 'set --'; (($#)) && printf ' %q' "$@"; echo
set +o
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
        self.started = time.monotonic()
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
                linux.kill_if_there(child, linux.SIGKILL)
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
            Broken: bash does not come back from it, or could not read it to its end.
        """
        self._tell(state + b"\n:")
        deadline = time.monotonic() + PATIENCE_S
        replies: list[dict[str, Any]] = []
        while not replies:
            if not linux.wait_readable([self.fileno()], deadline - time.monotonic()):
                raise Broken("the shell did not take its state back")
            replies = self.pump()
        if replies[0]["status"] != 0:
            raise Broken("the shell could not read what it wrote down")
        for capture in (self.out, self.err):
            capture.pump()
            capture.take()  # whatever it printed is of no concern to the next cell

    def _check_carriable(self) -> None:
        """Look for what a script can't carry; a while longer, as bash answers before it has put its descriptors back."""
        deadline = time.monotonic() + _TIDY_WITHIN_S
        try:
            while lost := self._lost():
                if time.monotonic() > deadline:
                    raise Lost(lost)
                time.sleep(0.005)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise Broken("the shell has ended") from error

    def _lost(self) -> list[str]:
        lost = []
        for shell in children_of(self.keeper):
            lost += [f"job {pid} ({name_of(pid)})" for pid in children_of(shell)]
            lost += redirected(shell, self.out, self.err)
            lost += [
                f"ulimit {name.removeprefix('RLIMIT_').lower()}"
                for kind, name in _LIMITS.items()
                if resource.prlimit(shell, kind) != resource.prlimit(self.keeper, kind)
            ]
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
