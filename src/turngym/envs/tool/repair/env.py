"""Mend a small git repository in which somebody noticed a bug: read, search, edit, run, then submit.

The agent works in a sandbox that forks with the episode, on a repository with one commit. What counts is the difference
between that commit and its files when it submits, as far as it is about the package's code: it is applied to a fresh
repository in another sandbox, where hidden probes ask what the code does (`grading`). Tests and whatever else lies in
the agent's sandbox have no say.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, ClassVar

from turngym.envs.folds import Fold, in_fold
from turngym.envs.tool.calling import Ending
from turngym.envs.tool.machines import Blueprint
from turngym.envs.tool.repair.grading import Grader
from turngym.envs.tool.repair.instances import Instance, Repository, build, manifest
from turngym.envs.tool.repair.render import libraries
from turngym.envs.tool.sandboxed import SandboxEnv
from turngym.envs.tool.schema import nearest
from turngym.envs.tool.toolbox import Answer
from turngym.envs.tool.tools import ToolError, tool
from turngym.errors import ConfigError, EnvFault, MissingDependency, unknown_name
from turngym.sandbox.base import ExecResult, Limits
from turngym.toolcalls import format_call
from turngym.types import Reply, ToolCall

_RULES = (
    "Mend the bug in a git repository at /workspace. Paths are relative to it. Change the code of the package and not "
    "what its documentation promises; hidden tests decide, and a submission is final."
)
_SECONDS = re.compile(r"\b\d+\.\d+s\b")
_LONGEST = 100_000
_FOUND, _NOTHING_FOUND = 0, 1  # grep's exit status

# Dates and names are fixed, and the index holds no times of files: equal repositories are equal in every byte.
_BEGIN = """
import json, os, subprocess, sys
from pathlib import Path
for name, text in json.load(sys.stdin).items():
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in
       (("NAME", "Maintainer"), ("EMAIL", "maintainer@example.org"), ("DATE", "2024-03-01T12:00:00Z"))}
def git(*words):
    return subprocess.run(["git", *words], env=os.environ | who, check=True, capture_output=True, text=True).stdout
git("init", "-q", "-b", "main", "--template=")
git("add", "-A")
git("commit", "-q", "-m", "First version")
os.remove(".git/index")
git("read-tree", "HEAD")
print(git("rev-parse", "HEAD").strip())
"""
_SETTINGS = "export GIT_OPTIONAL_LOCKS=0 PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0 PAGER=cat"
# With an index of its own, so that asking leaves no trace.
_DIFF = """
cd /workspace || exit
export GIT_INDEX_FILE=/tmp/.index-of-submission
git read-tree "$1" && git add -A -N -- "$2" &&
git -c core.quotePath=false diff --no-color --no-ext-diff --no-textconv --no-renames "$1" -- "$2"
status=$?
rm -f "$GIT_INDEX_FILE"
exit $status
"""


@dataclass(frozen=True, slots=True)
class RepairTask:
    """One repository to mend."""

    instance: Instance
    repository: Repository


class Repair(SandboxEnv[RepairTask]):
    """Find and mend a bug in a small git repository. Reward 1 where hidden tests accept the diff.

    Args:
        library: take bugs of this library alone; None takes all.
        command_s: seconds that one command may run.
        fold: bugs of `train` and `test` never meet.
        sandbox: name of the backend.
        max_turns: actions allowed.
        max_output_chars: of one tool result.
        render_mode: None or `ansi`.

    Raises:
        MissingDependency: git is not installed.
    """

    blueprint: ClassVar[Blueprint] = Blueprint(
        limits=Limits(wall_s=20, cpu_s=60, memory_mib=512, pids=64, disk_mib=64, output_kib=256)
    )

    def __init__(
        self,
        *,
        library: str | None = None,
        command_s: float = 20.0,
        fold: Fold = "train",
        sandbox: str = "best",
        max_turns: int = 20,
        max_output_chars: int = 6000,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            fold=fold,
            sandbox=sandbox,
            max_turns=max_turns,
            max_output_chars=max_output_chars,
            render_mode=render_mode,
        )
        if shutil.which("git") is None:
            raise MissingDependency("git is not installed: apt-get install git")
        if library is not None and library not in libraries():
            raise unknown_name("library", library, libraries())
        if not command_s > 0:
            raise ConfigError(f"command_s must be positive, got {command_s}")
        self.command_s = command_s
        self._grader = Grader(sandbox)
        self._instances = [
            each for each in manifest() if in_fold(each.name, fold) and library in (None, each.library)
        ]

    def deal(self) -> RepairTask:
        """One of the fold's bugs."""
        instance = self._instances[int(self.np_random.integers(len(self._instances)))]
        return RepairTask(instance, build(instance))

    def belongs(self, task: RepairTask) -> bool:
        """The constructor has chosen."""
        return True

    async def begin(self, task: RepairTask) -> Reply:
        """Make the repository, and say what was noticed."""
        await self.machine.cell("bash", _SETTINGS, timeout_s=self.command_s)
        files = json.dumps(dict(task.repository.files)).encode()
        made = await self.machine.exec(["python3", "-I", "-S", "-c", _BEGIN], files, timeout_s=60)
        if made.exit_code != 0:
            raise EnvFault(f"the repository could not be made: {made.text[-500:]}")
        self.notes["base"] = made.stdout.decode().strip()
        paths = "\n".join(path for path, _ in task.repository.files)
        return self.opening(f"{task.repository.report}\n\nFiles:\n{paths}", rules=_RULES)

    # ------------------------------------------------------------------ tools

    @tool
    async def read(self, path: str, first: int = 1, lines: int = 200) -> str:
        """Show lines of a file, with their numbers.

        Args:
            path: of the file.
            first: number of the first line.
            lines: how many.
        """
        text = await self._text(path)
        if first < 1 or lines < 1:
            raise ToolError("first and lines are at least 1")
        shown = list(enumerate(text.splitlines(), start=1))[first - 1 : first - 1 + lines]
        return "\n".join(f"{number:4} {line}" for number, line in shown) or "(no lines there)"

    @tool
    async def search(self, pattern: str, path: str = ".") -> str:
        """Find lines that match a regular expression (grep -E) in a file or folder.

        Args:
            pattern: an extended regular expression.
            path: where.
        """
        _check_text(pattern, path)
        argv = ["grep", "-rnIE", "--exclude-dir=.git", "-e", pattern, "--", path]
        found = await self.machine.exec(argv, timeout_s=self.command_s)
        if found.exit_code == _NOTHING_FOUND:
            return "nothing found"
        if found.exit_code != _FOUND or found.limit_hit not in (None, "output"):
            raise ToolError(_why(found) + ("" if path == "." else nearest(path, self._paths)))
        return found.text.rstrip("\n")

    @tool(concurrent=False)
    async def edit(self, path: str, old: str, new: str) -> str:
        """Replace a text that occurs once in a file.

        Args:
            path: of the file.
            old: the text as it is, without line numbers.
            new: what comes in its place.
        """
        text = await self._text(path)
        count = text.count(old) if old else 0
        if count != 1:
            raise ToolError(f"the old text occurs {count} times in {path}; it has to occur once")
        await self._put(path, text.replace(old, new))
        return "ok"

    @tool(concurrent=False)
    async def write(self, path: str, text: str) -> str:
        """Write a whole file.

        Args:
            path: of the file.
            text: all that it will hold.
        """
        await self._put(path, text)
        return "ok"

    @tool(concurrent=False)
    async def run(self, command: str) -> str:
        """Run a bash command in the repository, such as `python3 -m unittest discover tests`."""
        return _SECONDS.sub("…s", await self.bash(command, timeout_s=self.command_s))

    @tool(concurrent=False)
    async def submit(self) -> str:
        """Hand in the changes. This ends the episode."""
        if "accepted" in self.notes:
            raise ToolError("one submission ends the episode")
        argv = ["bash", "-c", _DIFF, "diff", self.notes["base"], self.task.repository.package]
        made = await self.machine.exec(argv, timeout_s=self.command_s)
        if made.exit_code != 0 or made.limit_hit is not None:
            self.notes["accepted"] = False
            return f"Wrong: git can't say what changed: {_why(made)}"
        diff = made.stdout.decode("utf-8", "replace")
        verdict = await self._grader.grade(self.task.repository, diff)
        self.notes["accepted"] = verdict.accepted
        if verdict.accepted:
            return "Accepted."
        right = verdict.total - len(verdict.wrong)
        return f"Wrong: {verdict.words or f'{right} of {verdict.total} hidden tests pass'}."

    async def judge(self, answer: Answer, last: bool) -> Ending | None:
        """A submission is the end."""
        return Ending(success=self.notes["accepted"]) if "accepted" in self.notes else None

    # ------------------------------------------------------------------ files

    @property
    def _paths(self) -> list[str]:
        return [path for path, _ in self.task.repository.files]

    async def _text(self, path: str) -> str:
        _check_text(path)
        try:
            return (await self.machine.read(path)).decode("utf-8", "replace")
        except OSError as error:
            hint = nearest(path, self._paths) if error.errno in (errno.ENOENT, errno.ENOTDIR) else ""
            raise ToolError(f"{path[:80]}: {error.strerror}{hint}") from error

    async def _put(self, path: str, text: str) -> None:
        _check_text(path)
        if len(text) > _LONGEST:
            raise ToolError(f"a file has at most {_LONGEST} characters")
        try:
            await self.machine.write(path, text.encode())
        except OSError as error:
            raise ToolError(f"{path[:80]}: {error.strerror}") from error

    # ------------------------------------------------------------------ scripts

    def optimal_action(self) -> str:
        """Read the broken file, mend it, submit. Knows the bug: for scripts and graders."""
        repository = self.task.repository
        if self.turn == 0:
            return format_call(ToolCall("read", {"path": repository.path}))
        if self.turn == 1:
            old, new = smallest_edit(repository.broken, repository.original)
            return format_call(ToolCall("edit", {"path": repository.path, "old": old, "new": new}))
        return format_call(ToolCall("submit", {}))

    def random_action(self, rng: Any) -> str:
        """A look, a change that mends nothing, a command or, rarely, a submission."""
        path = self._paths[int(rng.integers(len(self._paths)))]
        actions: list[tuple[str, Mapping[str, Any]]] = [
            ("read", {"path": path}),
            ("search", {"pattern": "def ", "path": path}),
            (
                "write",
                {"path": f"{self.task.repository.package}/notes.txt", "text": f"note {rng.integers(9)}\n"},
            ),
            ("edit", {"path": path, "old": '"""', "new": "'''"}),
            ("run", {"command": "git log --oneline; cd tests; pwd"}),
            ("run", {"command": f"x=$((x + {rng.integers(9)})); echo $x"}),
        ]
        if rng.random() < 0.05:
            return format_call(ToolCall("submit", {}))
        return format_call(ToolCall(*actions[int(rng.integers(len(actions)))]))


def smallest_edit(before: str, after: str) -> tuple[str, str]:
    """Whole lines of `before` that occur once, and those of `after` in their place.

    >>> smallest_edit("a\\nb\\nc\\n", "a\\nB\\nc\\n")
    ('b\\n', 'B\\n')
    """
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    changes = [o for o in SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if o[0] != "equal"]
    start, end, shift = changes[0][1], changes[-1][2], len(new) - len(old)
    while not (start < end and before.count("".join(old[start:end])) == 1):
        start, end = max(start - 1, 0), min(end + 1, len(old))
    return "".join(old[start:end]), "".join(new[start : end + shift])


def _check_text(*words: str) -> None:
    for word in words:
        if not word or "\0" in word:
            raise ToolError(f"not a path or pattern: {word[:40]!r}")


def _why(done: ExecResult) -> str:
    if done.limit_hit is not None:
        return f"the command hit the {done.limit_hit} limit"
    return done.stderr.decode("utf-8", "replace").strip()[:300] or f"exit status {done.exit_code}"
