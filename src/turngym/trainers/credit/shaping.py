"""Shaping: rewards to rewards, before any credit rule. Pure functions on arrays.

The one idea: what is to be discouraged whatever the outcome is written into the reward of the path, where every rule
sees it. Shape what is trained on and not what tasks are filtered by: a penalty on length makes almost every group
look as if its rollouts had ended differently.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from turngym.errors import ConfigError
from turngym.trainers.credit.base import Array


def overlong_penalty(lengths: npt.ArrayLike, *, limit: int, buffer: int, factor: float = 1.0) -> Array:
    """`(G,)` what to add to the reward of a path that came near its limit: min(0, −factor · (n − (limit − buffer)) / buffer).

    0 up to limit − buffer tokens, from there on a straight line to −factor at the limit, and on beyond it.

    Source: soft overlong punishment of DAPO (arXiv:2503.14476).

    Args:
        lengths: `(G,)` sampled tokens of each path.
        limit: tokens that a path may sample.
        buffer: tokens before the limit over which the penalty grows.
        factor: penalty at the limit, in units of the reward.

    Raises:
        ConfigError: unless 0 < buffer ≤ limit and factor ≥ 0.

    >>> overlong_penalty([16000, 16384, 18432, 20480], limit=20480, buffer=4096).tolist()
    [0.0, 0.0, -0.5, -1.0]
    """
    if not (0 < buffer <= limit and 0 <= factor < float("inf")):
        raise ConfigError(
            f"overlong_penalty needs 0 < buffer ≤ limit and factor ≥ 0; got limit={limit}, buffer={buffer}, factor={factor}"
        )
    over = (np.asarray(lengths, np.float64) - (limit - buffer)) / buffer
    return np.minimum(0.0, -factor * over) + 0.0  # + 0: no −0
