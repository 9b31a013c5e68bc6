"""Two folds of instances that never meet: a content hash decides which one an instance is in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from turngym.envs.state import state_digest
from turngym.errors import ConfigError, unknown_name

Fold = Literal["train", "test"]
T = TypeVar("T")

_MAX_DEALS = 10_000


def check_fold(fold: str) -> None:
    """Refuse what is no fold."""
    if fold not in ("train", "test"):
        raise unknown_name("fold", fold, ["train", "test"])


def in_fold(instance: Any, fold: Fold) -> bool:
    """True where `instance` belongs to `fold`. A fifth of all instances belong to `test`.

    Args:
        instance: what makes two fresh instances the same task; see `state_digest` for what it may be made of.
        fold: `train` or `test`.
    """
    return (int(state_digest(instance)[:8], 16) % 5 == 0) == (fold == "test")


def deal_until(deal: Callable[[], T], wanted: Callable[[T], bool], *, what: str) -> T:
    """Deal instances until one is wanted.

    Raises:
        ConfigError: where none of 10,000 is.
    """
    for _ in range(_MAX_DEALS):
        dealt = deal()
        if wanted(dealt):
            return dealt
    raise ConfigError(
        f"{_MAX_DEALS} deals gave no {what}: there are too few different instances; make its options larger"
    )
