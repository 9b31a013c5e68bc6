"""One integer seeds a whole run: run → task → member → turn.

Each level draws its own `numpy.random.SeedSequence` from the root and its path, so adding a task or a member
never changes the numbers of another one, and no global random state is read or written. Turn seeds come from
the member's seed by one SplitMix64 step (Steele et al., 2014), since a SeedSequence costs 20 µs and a turn
should not.
"""

from __future__ import annotations

import hashlib

import numpy as np

from turngym.errors import ConfigError

_MASK = (1 << 64) - 1


def derive(root: int, *path: int | str) -> int:
    """Return the 63-bit seed at `path` below `root`.

    Words are hashed to integers, so `derive(0, "task", 3)` and `derive(0, "eval", 3)` are unrelated.

    Raises:
        ConfigError: for a step that is an integer outside [0, 2³²): SeedSequence would split a larger one, and
            two paths would share a seed.

    >>> derive(0, "task", 3) == derive(0, "task", 3) != derive(0, "task", 4)
    True
    """
    key = [_word(p) if isinstance(p, str) else p for p in path]
    if not all(0 <= step < 1 << 32 for step in key):
        raise ConfigError(f"a step of a seed's path is a word or an integer in [0, 2**32), got {path}")
    words = np.random.SeedSequence(root, spawn_key=key).generate_state(1, np.uint64)
    return int(words[0]) >> 1


def generator(root: int, *path: int | str) -> np.random.Generator:
    """A PCG64 generator seeded at `path` below `root`."""
    return np.random.default_rng(derive(root, *path))


def turn_seed(member_seed: int, turn: int) -> int:
    """The 63-bit seed of one turn (or of one sampled token, when chained)."""
    z = (member_seed + (turn + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) >> 1


def _word(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")
