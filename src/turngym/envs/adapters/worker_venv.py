"""Virtual environments for packages whose pins clash with everybody else's: made on first use, kept, never changed.

A list of pins is complete (it is installed without resolving), so it names one environment, and its digest is the
folder's name: another version is another folder. Processes may race for it; one builds, the others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from turngym.errors import MissingDependency

logger = logging.getLogger(__name__)

_BUILD_S = 1200
"""Long enough for a few hundred megabytes on a slow line."""


@dataclass(frozen=True, slots=True)
class Pins:
    """What one virtual environment holds."""

    name: str
    "of the package that it is for"
    requirements: tuple[str, ...]
    "`package==version`, every one that is needed: nothing else is installed"

    @property
    def folder(self) -> Path:
        """Where it is kept: `~/.cache/turngym/venvs`, or under `XDG_CACHE_HOME`."""
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        digest = hashlib.blake2b("\n".join((python, *self.requirements)).encode(), digest_size=6).hexdigest()
        return cache_folder() / "venvs" / f"{self.name}-{digest}"


def cache_folder() -> Path:
    """Turngym's folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turngym"


def interpreter(pins: Pins) -> Path:
    """The Python of the environment with `pins`, made where it is not there yet (seconds to a minute).

    Raises:
        MissingDependency: where it can't be made; gives pip's last words and the command to try by hand.
    """
    folder = pins.folder
    python, ready = folder / "bin" / "python", folder / "ready"
    if ready.exists():
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if not ready.exists():
            logger.info("making the virtual environment of %s in %s", pins.name, folder)
            shutil.rmtree(folder, ignore_errors=True)  # what an interrupted build left
            _run(pins, [sys.executable, "-m", "venv", str(folder)])
            pip = [
                str(python),
                "-m",
                "pip",
                "install",
                "-q",
                "--disable-pip-version-check",
                "--no-deps",
                "--no-compile",
            ]
            _run(pins, [*pip, *pins.requirements])
            ready.touch()
    return python


def _run(pins: Pins, command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingDependency(f"no virtual environment for {pins.name}: {error}") from error
    if done.returncode:
        raise MissingDependency(
            f"no virtual environment for {pins.name}: {(done.stderr or done.stdout).strip()[-1000:]}\n"
            f"To try by hand: {' '.join(command)}"
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; it is let go when this process dies, too."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


__all__ = ["Pins", "cache_folder", "interpreter"]
