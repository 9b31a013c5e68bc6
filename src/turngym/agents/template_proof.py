"""The proof that a chat template can be rendered append-only, made once when a renderer is built.

Probe conversations are rendered twice: as a ledger (one opening, then per turn the ids of an action and of a reply
that was rendered on its own) and as a whole. After every turn both must agree on each added token, in order, and
on the decoded text, and no message may have been dropped. Token boundaries inside plain text may differ; that is
harmless, since the ledger is what was sampled and what is trained.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turngym.errors import TemplateError
from turngym.types import Message

if TYPE_CHECKING:
    from turngym.agents.template import Roles, TemplateRenderer

_THINKING = re.compile(r"<think>.*?</think>\s*|</?think>\s*", re.DOTALL)
_CALL = '<tool_call>\n{"name": "go", "arguments": {"to": "east"}}\n</tool_call>'

Turn = tuple[str, Sequence[Message]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was found."""

    roles: Roles
    "the smallest change of roles under which the template is append-only"
    rewrites_thinking: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One conversation to render in both ways. Every message carries a word `probeN`, so that a loss is seen."""

    opening: Sequence[Message]
    turns: Sequence[Turn]


_OPENING = (
    Message("system", "You play a game. probe0\nAnswer in one line.  "),
    Message("user", "  You are in a room — probe1.\n\n  A door (Tür, 門) is to the east.\n"),
)
PLAIN = (
    Probe(
        opening=_OPENING,
        turns=(
            (f"I go east.\n{_CALL}", (Message("tool", "\nThe door is locked. probe2\n\n"),)),
            (
                'Ich öffne die Tür: {"ok": [1, 2]} 🙂',
                (Message("tool", "ok probe3"), Message("tool", " probe4 ok")),
            ),
            ("a", (Message("user", "What now? probe5\n- east\n- west"),)),
            (_CALL, (Message("tool", "a"), Message("user", "b probe6"), Message("user", "c probe7"))),
            ("done", (Message("tool", "You won. probe8"),)),
        ),
    ),
    Probe(
        opening=(Message("user", "Guess a number. probe0"),),
        turns=(("4", (Message("user", "too low probe1"),)), ("7", (Message("user", "too high probe2"),))),
    ),
)
THINKING = Probe(
    opening=_OPENING,
    turns=(
        ("<think>\nEast is best.\n</think>\n\neast", (Message("tool", "locked probe2"),)),
        ("<think>\nThe key.\n</think>\n\nwest", (Message("user", "a key probe3"),)),
        ("<think>\nTake it.\n</think>\n\ntake key", (Message("user", "taken probe4"),)),
    ),
)
SPACED = Probe(
    opening=_OPENING,
    turns=(
        ("  east \n", (Message("tool", "locked probe2"),)),
        ("\n\nwest ", (Message("user", "a key probe3"),)),
    ),
)


def prove(renderer: TemplateRenderer) -> Proof:
    """Find the smallest adaptation of roles under which `renderer`'s template is append-only.

    Sets `renderer.roles` while it tries.

    Raises:
        TemplateError: where there is none.
    """
    from turngym.agents.template import ROLES  # noqa: PLC0415 - the renderer calls this module

    finding = ""
    for roles in ROLES:
        renderer.roles = roles
        findings = [check(renderer, probe) for probe in PLAIN]
        finding = next((f.text for f in findings if not f.harmless), "")
        if not finding:
            thinking = any(f.text for f in findings) or bool(check(renderer, THINKING).text)
            notes = []
            if thinking:
                notes.append("the template strips thinking from earlier turns: the ledger keeps it")
            if check(renderer, SPACED).text:
                notes.append(
                    "the template trims what the assistant said: the ledger keeps white space as sampled"
                )
            return Proof(roles=roles, rewrites_thinking=thinking, notes=tuple(notes))
    raise TemplateError(
        f"the chat template can't be rendered append-only. {finding} turngym never rewrites what a policy has seen. Pass a "
        "template (template=…) that prints a message in the same way wherever it stands in the conversation: without turn "
        "counters, without moving or cutting earlier messages"
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """The first difference of a probe; empty text where there is none."""

    text: str = ""
    only_thinking: bool = False

    @property
    def harmless(self) -> bool:
        """True where there is no difference, or only in thinking."""
        return not self.text or self.only_thinking


def check(renderer: TemplateRenderer, probe: Probe) -> Finding:
    """Render `probe` in both ways and compare after every turn."""
    try:
        return _check(renderer, probe)
    except TemplateError as error:
        return Finding(f"{error}.")


def _check(renderer: TemplateRenderer, probe: Probe) -> Finding:
    harmless = Finding()
    ledger = renderer.open(probe.opening).ids.tolist()
    whole = renderer.adapt(probe.opening, opening=True)
    words = _words(probe.opening)
    for turn, (said, answer) in enumerate(probe.turns, 1):
        ledger += renderer.action(said).tolist() + renderer.reply(answer, ended=True).ids.tolist()
        whole += [{"role": "assistant", "content": said}, *renderer.adapt(answer, opening=False)]
        words += _words(answer)
        text = renderer.render(whole)
        lost = next((word for word in words if word not in text), None)
        if lost:
            return Finding(f"After turn {turn} it has dropped the message with {lost!r}.")
        finding = compare(renderer, ledger, renderer.encode(text))
        if not finding.harmless:
            return Finding(f"After turn {turn} {finding.text}")
        harmless = harmless if harmless.text else finding
    return harmless


def compare(renderer: TemplateRenderer, ledger: Sequence[int], full: Sequence[int]) -> Finding:
    """Say how the ids of a ledger and of a full render differ in added tokens or in text."""
    mine, theirs = renderer.decode(ledger), renderer.decode(full)
    a, b = renderer.structure(ledger), renderer.structure(full)
    if a == b and mine == theirs:
        return Finding()
    text = "the text differs."
    if a != b:
        at = _agreement(a, b)
        names = [renderer.token(ids[at]) if at < len(ids) else "the end" for ids in (a, b)]
        text = f"added token {at} is {names[0]!r} in the ledger and {names[1]!r} in the full render."
    at = _agreement(mine, theirs)
    nearby = slice(max(0, at - 30), at + 30)
    text += f" Ledger: …{mine[nearby]!r}…, full render: …{theirs[nearby]!r}…."
    return Finding(text, only_thinking=_THINKING.sub("", mine) == _THINKING.sub("", theirs))


def _agreement(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the common prefix."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _words(messages: Sequence[Message]) -> list[str]:
    return [word for m in messages for word in re.findall(r"probe\d", m.content)]


__all__ = ["Finding", "Proof", "check", "compare", "prove"]
