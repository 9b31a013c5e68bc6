"""A Gymnasium space for any Unicode text. `spaces.Text` takes a fixed alphabet only."""

from __future__ import annotations

from typing import Any, NoReturn

from gymnasium import spaces
from gymnasium.error import CustomSpaceError
from gymnasium.vector.utils import create_shared_memory


class Utf8Text(spaces.Text):
    """Every string of at most `max_length` characters, lone surrogates included.

    Samples are short ASCII, drawn from the alphabet of `spaces.Text`.
    """

    def __init__(self, max_length: int = 1_000_000, *, seed: int | None = None) -> None:
        super().__init__(max_length, min_length=0, seed=seed)

    def contains(self, x: Any) -> bool:
        """True for a string of at most `max_length` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A random string of at most 64 characters."""
        if mask is None and probability is None:
            length = int(self.np_random.integers(65))
            return "".join(self.np_random.choice(self.character_list, size=length))
        return str(super().sample(mask, probability))

    def __repr__(self) -> str:
        return f"Utf8Text({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Utf8Text) and self.max_length == other.max_length

    __hash__ = spaces.Text.__hash__


@create_shared_memory.register(Utf8Text)
def _refuse_shared_memory(space: Utf8Text, n: int = 1, ctx: Any = None) -> NoReturn:
    """Gymnasium's shared memory knows one alphabet, and reads text once, when the environments are made."""
    raise CustomSpaceError(
        "text is passed between processes by pipe: gym.make_vec(…, vectorization_mode='async', "
        "vector_kwargs={'shared_memory': False})"
    )
