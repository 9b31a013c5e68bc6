"""Watch or play one episode in the console. It runs in the same loop as everything else; only the printing is here."""

from __future__ import annotations

from typing import Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from turngym.agents.loop import LoopOptions, begin, play
from turngym.agents.policies.scripted import ScriptedPolicy
from turngym.agents.policy import Policy, Turn
from turngym.envs.base import Step, TurnEnv
from turngym.toolcalls import format_call
from turngym.tree import Tree
from turngym.types import Message, Outcome, ToolCall

_STYLES = {"system": "dim", "user": "cyan", "tool": "yellow", "assistant": "bold green"}


async def watch(
    env: TurnEnv, policy: Policy, options: LoopOptions, console: Console, *, seed: int
) -> Outcome:
    """Play one episode and print every message, action and reward as it comes.

    Args:
        env: a fresh environment; the caller closes it.
        policy: who plays.
        options: budgets and sampling.
        console: where to.
        seed: of the episode and of the policy.

    Returns:
        How the episode counts.
    """
    shown = cast(TurnEnv, _Shown(env, console))
    tree = Tree(
        task_id=f"play#{seed}", rollout_id=f"play#{seed}", seed=seed, renderer_hash=policy.renderer.hash
    )
    root = await begin(shown, tree, policy, options, task_seed=seed)
    leaf = await play(shown, tree, root, policy, options, seed=seed)
    node, outcome = tree[leaf], tree[leaf].outcome or Outcome.ABORTED
    turns = len(tree.actions(leaf))
    line = (
        f"{outcome} ({node.stop}) after {turns} turn{'s' * (turns != 1)}, reward {tree.path_return(leaf):g}"
    )
    console.print(Text(line, style="bold green" if outcome is Outcome.SUCCESS else "bold red"))
    if "fault" in node.log:
        console.print(Text(visible(str(node.log["fault"])), style="red"))
    return outcome


class Human(ScriptedPolicy):
    """Whoever sits at the keyboard. The end of the input (Ctrl-D) ends the process, with exit code 0."""

    def __init__(self, console: Console) -> None:
        super().__init__("human")
        self._console = console

    def choose(self, turn: Turn, seed: int) -> tuple[str, float]:
        """What was typed; `go east` stands for the call of a tool that the environment names."""
        try:
            line = self._console.input(Text("› ", style="bold green"), markup=False)
        except EOFError:
            self._console.print("\nleft the episode")
            raise SystemExit(0) from None  # the loop would take any lesser error for a fault and play on
        return spoken(line, getattr(turn.env, "tools", {})), 0.0


def spoken(line: str, tools: Any) -> str:
    """A line that was typed, as an action: `TOOL ARGUMENT …` becomes a call, everything else stays as it is.

    Args:
        line: what was typed.
        tools: tool name → names of its arguments, in order.

    >>> spoken("go east", {"go": ("direction",)})
    '<tool_call>{"name": "go", "arguments": {"direction": "east"}}</tool_call>'
    >>> spoken("hello there", {"go": ("direction",)})
    'hello there'
    """
    name, *values = line.split() or [""]
    names = tools.get(name)
    if names is None or len(values) != len(names):
        return line
    typed = {n: int(v) if v.lstrip("-").isdecimal() else v for n, v in zip(names, values, strict=True)}
    return format_call(ToolCall(name, typed))


def visible(text: str) -> str:
    """`text` without what would steer a terminal: control characters and lone surrogates become U+FFFD.

    >>> visible("a\\x1b[2Jb\\n")
    'a\ufffd[2Jb\\n'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


class _Shown:
    """An environment whose every word is printed on the way."""

    def __init__(self, env: TurnEnv, console: Console) -> None:
        self._env, self._console = env, console

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    async def reset_async(self, **arguments: Any) -> tuple[str, dict[str, Any]]:
        observation, info = await self._env.reset_async(**arguments)
        self._say(info["messages"])
        return observation, info

    async def step_async(self, action: str) -> Step:
        self._say([Message("assistant", action)])
        step = await self._env.step_async(action)
        self._say(step[4]["messages"])
        if step[1]:
            self._console.print(Text(f"reward {step[1]:g}", style="magenta"))
        return step

    def _say(self, messages: list[Message]) -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(style="dim", justify="right", width=9)
        grid.add_column(overflow="fold")
        for message in messages:
            grid.add_row(message.role, Text(visible(message.content), style=_STYLES[message.role]))
        self._console.print(grid)
