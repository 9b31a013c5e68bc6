"""`turngym/Shell-v0`: do what is asked with files and texts, in a real bash.

The shell keeps its state from call to call (directory, variables, functions) and forks with the episode. Whether the
task is done is read from the files, from outside of the sandbox, when the agent says so or has no turn left.
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar

from turngym.envs.folds import Fold
from turngym.envs.tool.calling import Ending
from turngym.envs.tool.machines import Blueprint
from turngym.envs.tool.sandboxed import SandboxEnv
from turngym.envs.tool.shell.tasks import FOLDERS, LEVELS, WORDS, ShellTask
from turngym.envs.tool.toolbox import Answer
from turngym.envs.tool.tools import tool
from turngym.errors import ConfigError
from turngym.sandbox.base import Limits
from turngym.toolcalls import format_call
from turngym.types import Reply, ToolCall

_RULES = "Use the shell. Call done when the task is done."
_CHATTER = (
    "ls",
    "pwd",
    "cat {word}",
    "echo {other} > {word}",
    "rm -f {word}",
    "mkdir -p {folder} && cd {folder}",
    "mv {word} {other}",
    "cp {word} {other}",
    "count=$((count + 1)); echo $count",
    "touch {folder}/{word}",
)


class Shell(SandboxEnv[ShellTask]):
    """Work on files and texts with shell commands. Reward 1 where all files are as asked in the end.

    Args:
        level: 1 one short command, 2 one command on a text, 3 a tree of files; 0 draws one of them.
        command_s: seconds that one command may run.
        fold: `train` or `test` instances.
        sandbox: name of the backend.
        max_turns: actions allowed; the files are looked at after the last one, too.
        render_mode: None or `ansi`.
    """

    blueprint: ClassVar[Blueprint] = Blueprint(
        limits=Limits(wall_s=10, cpu_s=30, memory_mib=256, pids=64, disk_mib=32, output_kib=64)
    )

    def __init__(
        self,
        *,
        level: int = 0,
        command_s: float = 10.0,
        fold: Fold = "train",
        sandbox: str = "best",
        max_turns: int = 10,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(fold=fold, sandbox=sandbox, max_turns=max_turns, render_mode=render_mode)
        if level not in (0, *LEVELS):
            raise ConfigError(f"level is 1, 2, 3, or 0 for any of them; got {level!r}")
        if not command_s > 0:
            raise ConfigError(f"command_s must be positive, got {command_s}")
        self.command_s = command_s
        self._kinds = LEVELS[level] if level else tuple(kind for kinds in LEVELS.values() for kind in kinds)

    def deal(self) -> ShellTask:
        """A task of the level."""
        return self._kinds[int(self.np_random.integers(len(self._kinds)))](self.np_random)

    async def begin(self, task: ShellTask) -> Reply:
        """Write the files, and say what to do."""
        for path, content in task.files:
            await self.machine.write(path, content.encode())
        return self.opening(task.words, rules=_RULES)

    @tool(concurrent=False)
    async def run(self, command: str) -> str:
        """Run a bash command."""
        return await self.bash(command, timeout_s=self.command_s)

    @tool(concurrent=False)
    async def done(self) -> str:
        """Say that the task is done. This ends the episode."""
        self.notes["said_done"] = True
        return "ok"

    async def judge(self, answer: Answer, last: bool) -> Ending | None:
        """Look at the files at the end."""
        if "said_done" in self.notes or last:
            return Ending(success=await self._is_done())
        return None

    async def _is_done(self) -> bool:
        return all([await self._holds(path, content) for path, content in self.task.wanted])

    async def _holds(self, path: str, wanted: str | None) -> bool:
        """True where `path` is as wanted. What the agent put in the way of reading it is not as wanted."""
        try:
            data = await self.machine.read(path.rstrip("/"), follow=False)
        except OSError as error:
            missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
            return missing if wanted is None else path.endswith("/") and error.errno == errno.EISDIR
        if wanted is None or path.endswith("/"):
            return False
        return data.rstrip(b"\n") == wanted.encode().rstrip(b"\n")

    def optimal_action(self) -> str:
        """Do it, then say so. Looks at what is hidden: for scripts and graders."""
        if self.turn == 0:
            return format_call(ToolCall("run", {"command": self.task.solution}))
        return format_call(ToolCall("done", {}))

    def random_action(self, rng: Any) -> str:
        """A command about files that may exist or, now and then, a word that it is done."""
        if rng.random() < 0.1:
            return format_call(ToolCall("done", {}))
        known = [path for path, _ in self.task.files] or list(WORDS)
        command = _CHATTER[int(rng.integers(len(_CHATTER)))].format(
            word=known[int(rng.integers(len(known)))],
            other=WORDS[int(rng.integers(len(WORDS)))],
            folder=FOLDERS[int(rng.integers(len(FOLDERS)))],
        )
        return format_call(ToolCall("run", {"command": command}))
