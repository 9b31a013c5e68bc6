"""Messages to token ids, append-only.

The tokens of an observation come from a render of their own, never from an offset into a re-render of the
history, and what the policy sampled is never decoded and encoded again. So the ids that a policy is given at
turn t are a prefix of those at turn t + 1, and the ids at training are the ids at sampling.

`ByteRenderer` serves policies without a tokenizer. `agents.template.TemplateRenderer` serves every Hugging Face
chat template, and proves at the start that the template allows all this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from turngym.tree import Origin
from turngym.types import IntArray, Message


@dataclass(frozen=True, slots=True)
class Rendered:
    """A span of ids with the origin of each."""

    ids: IntArray
    "`(T,)`"
    origin: Origin | npt.NDArray[np.uint8]
    "one for all, or `(T,)`"


class Renderer(Protocol):
    """Turns messages into ids and ids into text, for one tokenizer and template."""

    hash: str
    "32 hex digits: equal hashes promise equal ids for equal messages"
    stop_ids: tuple[int, ...]
    "ids that end an action"

    def open(self, messages: Sequence[Message]) -> Rendered:
        """The first context of an episode, up to the point where the policy speaks."""
        ...

    def reply(self, messages: Sequence[Message], *, ended: bool) -> Rendered:
        """What follows an action: its closing (where the policy did not write it itself), the new messages, and
        the opening of the next action.

        Args:
            messages: what the environment answered.
            ended: True where the action's last id is one of `stop_ids`.
        """
        ...

    def text(self, action_ids: IntArray) -> str:
        """What the policy said, for the environment: without the end-of-turn id, special tokens kept."""
        ...

    def action(self, text: str) -> IntArray:
        """`(T,)` ids of `text` said by the policy, end-of-turn id included: for scripts and demonstrations."""
        ...


class ByteRenderer:
    """UTF-8 bytes as ids, with one id per role to open a message and one to end it.

    Rendering costs a microsecond, which keeps scripted rollouts fast.

    >>> r = ByteRenderer()
    >>> r.text(r.action("go east"))
    'go east'
    """

    END = 256
    _OPEN: ClassVar[dict[str, int]] = {"system": 257, "user": 258, "assistant": 259, "tool": 260}

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(b"turngym bytes 1", digest_size=16).hexdigest()
        self.stop_ids: tuple[int, ...] = (self.END,)
        self._opening = np.array([self._OPEN["assistant"]], np.int32)

    def open(self, messages: Sequence[Message]) -> Rendered:
        """Every message, then the opening of an assistant message."""
        return Rendered(self._render(messages, closing=False), Origin.ENV)

    def reply(self, messages: Sequence[Message], *, ended: bool) -> Rendered:
        """The same for what follows an action."""
        return Rendered(self._render(messages, closing=not ended), Origin.ENV)

    def text(self, action_ids: IntArray) -> str:
        """Bytes to text; bytes that are not UTF-8 become U+FFFD."""
        ids = action_ids[:-1] if action_ids.size and action_ids[-1] == self.END else action_ids
        return ids[ids < 256].astype(np.uint8).tobytes().decode("utf-8", "replace")

    def action(self, text: str) -> IntArray:
        """Text to bytes, lone surrogates as `?`, then the end id."""
        raw = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
        ids = np.empty(raw.size + 1, np.int32)
        ids[:-1] = raw
        ids[-1] = self.END
        return ids

    def _render(self, messages: Sequence[Message], *, closing: bool) -> IntArray:
        parts: list[IntArray] = [np.array([self.END], np.int32)] if closing else []
        for message in messages:
            ids = self.action(message.content)
            parts += [np.array([self._OPEN[message.role]], np.int32), ids]
        parts.append(self._opening)
        return np.concatenate(parts)
