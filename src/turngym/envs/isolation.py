"""Keep other people's packages to themselves.

Packages that were written for one player at a time draw from the global `random`, seed it, warn and print. Here many
episodes run side by side in one process. So each gets the global generators to itself for the length of one call, and
the process finds them as they were: interleaved episodes equal serial ones.
"""

from __future__ import annotations

import logging
import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

_LOCK = threading.RLock()


@dataclass(slots=True)
class GlobalRandom:
    """What `random` and `numpy.random` hold while one episode has them."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]

    @classmethod
    def seeded(cls, seed: int) -> GlobalRandom:
        """The state after seeding both with `seed`, without touching either."""
        numpy_state = np.random.RandomState(seed & 0xFFFFFFFF).get_state(legacy=False)
        return cls(random.Random(seed).getstate(), dict(numpy_state))

    @classmethod
    def current(cls) -> GlobalRandom:
        """What the process holds now."""
        return cls(random.getstate(), dict(np.random.get_state(legacy=False)))

    def install(self) -> None:
        """Make this the state of the process."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)


@contextmanager
def isolated(episode: GlobalRandom | None = None) -> Iterator[None]:
    """Run somebody else's code: without warnings, and with the global generators put back after it.

    Args:
        episode: the generators of the episode that runs, which is moved on; None to start from whatever is there
            (an import, a generator of games that brings its own).
    """
    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = GlobalRandom.current()
        if episode is not None:
            episode.install()
        try:
            yield
        finally:
            if episode is not None:
                after = GlobalRandom.current()
                episode.python, episode.numpy = after.python, after.numpy
            before.install()


def silence(module: ModuleType) -> None:
    """Send what `module` prints to the log: a name `print` of its own goes before the builtin.

    Redirecting `sys.stdout` instead would swallow what other threads write meanwhile.
    """
    vars(module)["print"] = lambda *words, **_: logger.debug(
        "%s: %s", module.__name__, " ".join(map(str, words))
    )
