"""Any Hugging Face chat template, rendered append-only and proven so at the start.

An episode is opened with one render. Every later observation is rendered *on its own*: behind a fixed two-message
conversation whose assistant turn is a sentinel, so that what follows the sentinel (the closing of the action, the
separators, the new messages, the opening of the next action) is the text that the template would have put there.
That text alone is encoded; what the policy sampled is never touched.

Whether a template allows this is not assumed but proven by the constructor (`agents.template_proof`): over several
probe conversations the ledger and the full render must agree on every added token and on the decoded text. Roles
that a template refuses, drops or moves are mapped to ones that it takes, and the mapping is part of `hash`. A
template that strips the *thinking* of earlier turns is accepted: the ledger keeps what was sampled.

Text of a message never becomes structure: `<|im_end|>` inside an observation is encoded as ordinary characters.
What this module does not do: tool schemas in the template's own `tools` slot, and images.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt

from turngym.agents.chat import Rendered
from turngym.errors import TemplateError
from turngym.tree import Origin
from turngym.types import IntArray, Message

log = logging.getLogger(__name__)

_FORMAT = "turngym template 1"
_SENTINEL = "turngymsentinel"
_BASE = ({"role": "user", "content": "turngym"}, {"role": "assistant", "content": _SENTINEL})
# The date that Llama 3's own template falls back to.
_PINNED_DATE = date(2024, 7, 26)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """What a template does with roles; everything False means that it takes them as they come."""

    tool_as_user: bool = False
    "tool messages become user messages"
    system_into_user: bool = False
    "the system message is put in front of the first user message"
    merge_users: bool = False
    "consecutive user messages become one"

    def notes(self) -> list[str]:
        """What is done to messages, in words."""
        words = {
            "tool_as_user": "the template does not take `tool` messages after plain text: they are sent as `user`",
            "system_into_user": "the template does not keep a `system` message: it is put in front of the first `user` message",
            "merge_users": "the template refuses two `user` messages in a row: they are sent as one",
        }
        return [words[name] for name, on in asdict(self).items() if on]


ROLES = tuple(
    Roles(tool_as_user=tool, system_into_user=system, merge_users=merge)
    for merge in (False, True)
    for system in (False, True)
    for tool in (False, True)
)
"""Every mapping, the fewest changes first."""


class TemplateRenderer:
    """Messages to ids and back for one tokenizer and its chat template. Implements `chat.Renderer`.

    Args:
        tokenizer: a Hugging Face tokenizer.
        template: a Jinja chat template, or the name of one of the tokenizer's; None takes the tokenizer's default.
        stop_ids: further ids that end an action (a model's `generation_config.eos_token_id`).
        template_kwargs: variables for the template, such as `{"enable_thinking": False}`.

    Attributes:
        notes: what had to be adapted, in words, for logs and run folders.
        rewrites_thinking: True where the template strips thinking from earlier turns, which the ledger keeps.

    Raises:
        TemplateError: no template, a template that rewrites history, or one that has no token to end a turn. The
            message says what differs, where, and what to do.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        template: str | None = None,
        stop_ids: Iterable[int] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        from turngym.agents.template_proof import prove  # noqa: PLC0415 - the proof imports this module

        self.tokenizer = tokenizer
        self._kwargs = dict(template_kwargs or {})
        source = _template_text(tokenizer, template)
        self._template = _pin_date(source)
        special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        added = tokenizer.added_tokens_decoder
        # Some vocabularies (Gemma's) add runs of newlines; those are text.
        self._added: dict[int, str] = special | {
            int(i): str(t) for i, t in added.items() if not str(t).isspace()
        }
        self._structural = np.zeros(max(self._added, default=0) + 1, np.bool_)
        self._structural[list(self._added)] = True
        control = {*special.values(), *(str(t) for t in added.values() if t.special)}
        self._control = sorted(control, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, self._control)) or r"(?!)")
        # Unguessable, so that no observation can forge a mark. It never reaches the ids.
        self._mark = f"\ue000{secrets.randbits(64)}"
        self._marks = re.compile(f"{self._mark}:([0-9]+)\ue001")
        self._literals: dict[str, list[int]] = {}
        self.roles = Roles()
        self._read_turn()
        proof = prove(self)
        self.roles = proof.roles
        self.rewrites_thinking = proof.rewrites_thinking
        eos = tokenizer.eos_token_id
        self.stop_ids = tuple(
            dict.fromkeys([self.end_id, *([] if eos is None else [int(eos)]), *map(int, stop_ids)])
        )
        self.notes = (*self.roles.notes(), *proof.notes)
        if self._template != source:
            self.notes += (
                f"the template prints the date: it is fixed to {_PINNED_DATE}, so equal messages give equal ids",
            )
        self.hash = self._digest(source)
        for note in self.notes:
            log.info("chat template: %s", note)
        if self.rewrites_thinking:
            log.warning(
                "the chat template strips thinking from earlier turns; turngym keeps every sampled token in the context, "
                "so prompts are longer than this template would make them"
            )

    # ------------------------------------------------------------------ the contract

    def open(self, messages: Sequence[Message]) -> Rendered:
        """The first context of an episode, up to the point where the policy speaks."""
        if not messages:
            raise TemplateError("open() needs at least one message: an episode starts with an observation")
        return self._rendered(self.encode(self.render(self.adapt(messages, opening=True))))

    def reply(self, messages: Sequence[Message], *, ended: bool) -> Rendered:
        """What follows an action: its end-of-turn id unless `ended`, separators, the messages, the next opening."""
        ids = self.encode(self._after_sentinel(self.adapt(messages, opening=False)))
        if self.structure(ids)[:1] != [self.end_id]:
            roles = [m.role for m in messages]
            raise TemplateError(
                f"before {roles} the chat template ends a turn otherwise than with {self.token(self.end_id)!r}"
            )
        return self._rendered(ids[ids.index(self.end_id) + 1 :] if ended else ids)

    def text(self, action_ids: IntArray) -> str:
        """What the policy said, without its end-of-turn id; other special tokens stay visible."""
        ids = action_ids.tolist()
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        return self.decode(ids).removeprefix(self._lead).removesuffix(self._tail)

    def action(self, text: str) -> IntArray:
        """`(T,)` ids of `text` said by the policy, end-of-turn id included.

        Encoded behind the opening of the turn, as the full render would have it: some tokenizers put a space in
        front of a text that stands alone.
        """
        said = self._guard(f"{self._lead}{text}{self._tail}")
        before = self.encode(self._opening)
        ids = self.encode(self._opening + said)
        if ids[: len(before)] == before:
            ids = ids[len(before) :]
        else:  # the text melts into the opening: a newline after a newline
            ids = self.encode(self.token(self.end_id) + said)[1:]
        return np.array([*ids, self.end_id], np.int32)

    # ------------------------------------------------------------------ text

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The template's text for `messages` with the opening of an assistant turn behind them.

        Raises:
            TemplateError: where the template refuses the messages.
        """
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages),
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=True,
                **self._kwargs,
            )
        except Exception as error:  # templates are programs; any exception is their way to refuse
            roles = [m["role"] for m in messages]
            raise TemplateError(
                f"the chat template refuses the roles {roles}: {type(error).__name__}: {error}"
            ) from error
        return text

    def adapt(self, messages: Sequence[Message], *, opening: bool) -> list[dict[str, Any]]:
        """Messages as this template takes them, with the text of special tokens guarded."""
        out: list[dict[str, Any]] = []
        for position, message in enumerate(messages):
            entry = message.to_dict()
            if entry["role"] == "system" and (self.roles.system_into_user or not opening or position):
                entry["role"] = "user"
            elif entry["role"] == "tool" and self.roles.tool_as_user:
                entry = {"role": "user", "content": message.content}
            head = self.roles.system_into_user and opening and position == 1 and messages[0].role == "system"
            if out and out[-1]["role"] == entry["role"] == "user" and (self.roles.merge_users or head):
                out[-1] = {**out[-1], "content": f"{out[-1]['content']}\n\n{entry['content']}"}
            else:
                out.append(entry)
        return [_map_strings(entry, self._guard) for entry in out]

    def encode(self, text: str) -> list[int]:
        """Ids of rendered text. Guarded special tokens become ordinary characters."""
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode()
        if self._mark in text:
            return self._encode_guarded(text)
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens visible. For people and environments, never for training."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def structure(self, ids: Sequence[int]) -> list[int]:
        """The added tokens among `ids`, in order."""
        return [i for i in ids if i in self._added]

    def token(self, index: int) -> str:
        """The text of one added token."""
        return self._added.get(index, str(index))

    # ------------------------------------------------------------------ inside

    def _read_turn(self) -> None:
        """Learn how the template opens and closes an assistant turn.

        Sets `end_id`, and the white space that it puts before (`_lead`) and after (`_tail`) what the assistant says.
        """
        opening = self.render(_BASE[:1])
        whole = self.render(_BASE)
        if _SENTINEL not in whole:
            raise TemplateError(
                "the chat template drops what the assistant said: pass another one with template=…"
            )
        between = whole[len(opening) : whole.index(_SENTINEL)] if whole.startswith(opening) else ""
        self._lead = between if between.isspace() else ""
        closing = self._after_sentinel([_BASE[0]])
        ends = self.structure(self.encode(closing))
        tail, found, _ = closing.partition(self.token(ends[0])) if ends else (closing, "", "")
        if not found or tail.strip():
            raise TemplateError(
                f"the chat template closes an assistant turn with the plain text {closing[:40]!r}, so no token can end an "
                "action: pass a template (template=…) that ends assistant turns with a special token such as the "
                "tokenizer's eos token"
            )
        self.end_id = ends[0]
        self._tail = tail
        self._opening = opening[max(0, *(opening.rfind(t) for t in self._added.values())) :]

    def _after_sentinel(self, messages: Sequence[Mapping[str, Any]]) -> str:
        _, _, after = self.render([*_BASE, *messages]).partition(_SENTINEL)
        return after

    def _rendered(self, ids: list[int]) -> Rendered:
        """Origins: added tokens, the closing of the action and the opening of the next one are the TEMPLATE's, the
        rest (message text, with the words of its header) is the environment's."""
        array = np.array(ids, np.int32)
        origin: npt.NDArray[np.uint8] = np.full(array.size, Origin.ENV, np.uint8)
        origin[
            self._structural[np.minimum(array, self._structural.size - 1)] & (array < self._structural.size)
        ] = Origin.TEMPLATE
        ends = np.flatnonzero(array == self.end_id)
        if ends.size:
            origin[ends[-1] :] = Origin.TEMPLATE
        return Rendered(array, origin)

    def _guard(self, text: str) -> str:
        """Replace the text of special tokens by marks that `encode` turns into ordinary characters."""
        return self._control_pattern.sub(lambda m: f"{self._mark}:{self._control.index(m[0])}\ue001", text)

    def _encode_guarded(self, text: str) -> list[int]:
        ids: list[int] = []
        end = 0
        for match in self._marks.finditer(text):
            ids += self._encode_piece(text[end : match.start()], first=not end)
            ids += self._literal(self._control[int(match[1])])
            end = match.end()
        return ids + self._encode_piece(text[end:], first=not end)

    def _encode_piece(self, text: str, *, first: bool) -> list[int]:
        """Ids of a part of a text. Behind the end-of-turn token, so that no tokenizer takes it for a beginning."""
        if first or not text:
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
            return ids
        ids = self.tokenizer.encode(self.token(self.end_id) + text, add_special_tokens=False)
        return ids[1:]

    def _literal(self, token: str) -> list[int]:
        """Ids of a special token's text as ordinary characters."""
        if token not in self._literals:
            ids: list[int] = self.tokenizer.encode(token, add_special_tokens=False, split_special_tokens=True)
            if self.structure(ids):
                pieces = [self._encode_piece(character, first=False) for character in token]
                ids = [i for piece in pieces for i in piece if i not in self._added]
            self._literals[token] = ids
        return self._literals[token]

    def _digest(self, template: str) -> str:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            vocabulary: Any = sorted(self.tokenizer.get_vocab().items())
        else:
            # Padding and truncation are left over from the last call and have no part in what is encoded here.
            vocabulary = {
                k: v for k, v in json.loads(backend.to_str()).items() if k not in ("padding", "truncation")
            }
        special = self.tokenizer.special_tokens_map
        rules = [str(_PINNED_DATE), asdict(self.roles), self._kwargs]
        parts = [_FORMAT, template, vocabulary, self._added, special, rules]
        text = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _template_text(tokenizer: Any, template: str | None) -> str:
    if template is None and not getattr(tokenizer, "chat_template", None):
        raise TemplateError(
            f"{type(tokenizer).__name__} of {getattr(tokenizer, 'name_or_path', '') or 'this model'} has no chat template. "
            "Pass one: `local:MODEL?template=chat.jinja` where policies are named, TemplateRenderer(tokenizer, template=…) "
            "in code. "
            "A model that was never trained on a chat format will not end its turns: take an instruction-tuned one"
        )
    try:
        text: str = tokenizer.get_chat_template(template)
    except ValueError as error:
        raise TemplateError(f"{error} Pass the name of one as template=…") from error
    return text


def _pin_date(template: str) -> str:
    """Shadow the function that prints today's date, so that a run does not change at midnight."""
    if "strftime_now" not in template:
        return template
    formats = re.findall(r"""strftime_now\(\s*["']([^"']*)["']\s*\)""", template)
    table = json.dumps({f: _PINNED_DATE.strftime(f) for f in formats})
    macro = f"{{%- macro strftime_now(format) -%}}{{{{ {table}.get(format, {str(_PINNED_DATE)!r}) }}}}{{%- endmacro %}}\n"
    return macro + template  # the engine trims the newline after a block tag


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {k: v if k == "role" else _map_strings(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(v, change) for v in value]
    return value


__all__ = ["ROLES", "Roles", "TemplateRenderer"]
