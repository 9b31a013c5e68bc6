"""Ledger: read a long stream of bookings page by page and report one balance at the end.

Which account is asked is said only after the last page, so the one thing worth carrying is the balance of every
account: what a summary has to learn when the text outgrows the context. At the default size an episode is longer
than 1,500 tokens of a small vocabulary, while `Ledger(entries=6, accounts=2)` fits a window of 512.

The single answer is final, and a turn spent on anything but the next page is lost: an instance is doomed once
the turns left are fewer than the pages left plus one.

Knobs: `accounts`, `entries`, `page` (entries per page), `noise` (idle remarks per page), `slack`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from turngym.envs.folds import Fold
from turngym.envs.text.game import Feedback, TextGame
from turngym.errors import ConfigError
from turngym.toolcalls import format_call
from turngym.types import ToolCall

ACCOUNTS = ("ann", "bob", "cat", "dan", "eve", "fay", "gus", "hal")
REMARKS = (
    "It rains.",
    "The clerk yawns.",
    "The phone rings.",
    "The tea is cold.",
    "The bank is quiet.",
    "A dog barks.",
)
_BALANCE_MAX = 99


@dataclass(frozen=True, slots=True)
class Book:
    """What never changes in an episode."""

    pages: tuple[str, ...]
    "the entries of every page, as shown"
    balances: tuple[tuple[int, ...], ...]
    "balance of every account after each number of pages, none to all"
    remarks: tuple[str, ...]
    "idle text of every page"
    asked: str
    "the account that is asked after the last page"
    turns: int


@dataclass(slots=True)
class LedgerState:
    """How far the reader is."""

    layout: Book
    read: int = 0
    "pages shown so far"
    turn: int = 0
    won: bool = False
    lost: bool = False


class Ledger(TextGame[LedgerState]):
    """Page through bookings, then say the balance of the account that is asked. Reward 1 for the right one.

    Balances start at 0 and stay within 0 to 99; an entry moves one by 1 to 9.

    Args:
        accounts: how many accounts, 1 to 8.
        entries: bookings in all, 1 to 10,000.
        page: bookings on a page.
        noise: idle remarks on a page, 0 to 6.
        slack: turns allowed beyond one for each page and one for the answer.
        fold: `train` or `test` instances.
        render_mode: None or `ansi`.
    """

    tools: ClassVar = {"next": (), "answer": ("amount",)}

    def __init__(
        self,
        *,
        accounts: int = 4,
        entries: int = 96,
        page: int = 4,
        noise: int = 1,
        slack: int = 2,
        fold: Fold = "train",
        render_mode: str | None = None,
    ) -> None:
        if not 1 <= accounts <= len(ACCOUNTS) or not 1 <= entries <= 10_000 or page < 1:
            raise ConfigError(
                "Ledger needs 1 ≤ accounts ≤ 8, 1 ≤ entries ≤ 10000, page ≥ 1; "
                f"got accounts={accounts}, entries={entries}, page={page}"
            )
        if not 0 <= noise <= len(REMARKS) or slack < 0:
            raise ConfigError(f"Ledger needs 0 ≤ noise ≤ {len(REMARKS)}, slack ≥ 0; got {noise}, {slack}")
        super().__init__(fold=fold, render_mode=render_mode)
        self.accounts, self.entries, self.page, self.noise, self.slack = accounts, entries, page, noise, slack

    def deal(self) -> LedgerState:
        """Draw the entries, the remarks and the question."""
        rng, totals = self.np_random, [0] * self.accounts
        who = rng.integers(self.accounts, size=self.entries).tolist()
        amounts = (rng.integers(1, 10, size=self.entries) * rng.choice((-1, 1), size=self.entries)).tolist()
        shown, balances = [], [tuple(totals)]
        for i, (account, drawn) in enumerate(zip(who, amounts, strict=True), start=1):
            amount = drawn if 0 <= totals[account] + drawn <= _BALANCE_MAX else -drawn
            totals[account] += amount
            shown.append(f"{ACCOUNTS[account]} {amount:+d}")
            if i % self.page == 0 or i == self.entries:
                balances.append(tuple(totals))
        pages = tuple(", ".join(shown[i : i + self.page]) for i in range(0, self.entries, self.page))
        remarks = tuple(
            " ".join(REMARKS[i] for i in rng.choice(len(REMARKS), size=self.noise, replace=False).tolist())
            for _ in pages
        )
        asked = ACCOUNTS[int(rng.integers(self.accounts))]
        return LedgerState(Book(pages, tuple(balances), remarks, asked, len(pages) + 1 + self.slack))

    def turn_limit(self, state: LedgerState) -> int:
        """One turn a page, one for the answer, and the slack."""
        return state.layout.turns

    def instance(self, state: LedgerState) -> Any:
        """The entries and the question; remarks don't make another task."""
        return state.layout.pages, state.layout.asked

    def rules(self, state: LedgerState) -> str:
        """How to win and how to call the tools."""
        return (
            "Keep the balance of every account; all start at 0. After the last page one of them is asked. "
            "You can answer once.\n"
            "Tools: next(), answer(amount). One call a turn:\n"
            '<tool_call>{"name": "next", "arguments": {}}</tool_call>'
        )

    def opening(self, state: LedgerState) -> str:
        """The accounts, the pages and the turns."""
        names, book = " ".join(ACCOUNTS[: self.accounts]), state.layout
        return f"Accounts: {names}. Pages: {len(book.pages)}. You have {book.turns} turns."

    def call(self, state: LedgerState, call: ToolCall) -> Feedback:
        """Show the next page or take the answer."""
        book = state.layout
        if call.name == "next":
            if state.read == len(book.pages):
                return Feedback(f"No more pages. {self._question(state)}")
            state.read += 1
            return Feedback(self._view(state))
        amount = call.arguments["amount"]
        if state.read < len(book.pages):
            return Feedback("Error: nothing is asked before the last page.")
        if type(amount) is not int:  # JSON's true is an int to isinstance
            return Feedback("Error: amount is an integer.")
        if amount != self.balances(state)[book.asked]:
            state.lost = True
            return Feedback("Wrong.")
        state.won = True
        return Feedback("Right.", reward=1.0)

    def doomed(self, state: LedgerState) -> bool:
        """True after a wrong answer, and where the pages left and the answer need more turns than are left."""
        book = state.layout
        needed = len(book.pages) - state.read + 1
        return state.lost or (not state.won and needed > book.turns - state.turn)

    def best_call(self, state: LedgerState) -> ToolCall:
        """Read to the end, then answer."""
        if state.read < len(state.layout.pages):
            return ToolCall("next", {})
        return ToolCall("answer", {"amount": self.balances(state)[state.layout.asked]})

    def random_call(self, state: LedgerState, rng: Any) -> ToolCall:
        """Turn the page, or answer with any balance, with equal chance."""
        if rng.integers(2):
            return ToolCall("next", {})
        return ToolCall("answer", {"amount": int(rng.integers(_BALANCE_MAX + 1))})

    def optimal_action(self) -> str:
        """The optimal call after a note of every balance so far, which is all that has to be remembered."""
        return f"{self.note(self._state)}\n{format_call(self.best_call(self._state))}"

    def balances(self, state: LedgerState) -> dict[str, int]:
        """Account → balance after the pages shown so far."""
        return dict(zip(ACCOUNTS, state.layout.balances[state.read], strict=False))

    def note(self, state: LedgerState) -> str:
        """The balances in words: the ideal summary of everything shown so far."""
        return ", ".join(f"{name} {total}" for name, total in self.balances(state).items())

    def _view(self, state: LedgerState) -> str:
        book, number = state.layout, state.read
        parts = [f"Page {number}: {book.pages[number - 1]}.", book.remarks[number - 1]]
        if number == len(book.pages):
            parts.append(self._question(state))
        return " ".join(part for part in parts if part)

    def _question(self, state: LedgerState) -> str:
        return f"How much has {state.layout.asked}?"
