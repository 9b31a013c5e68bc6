"""What runs inside a grading sandbox: a program of its own, with the standard library alone.

It writes a repository, applies a diff to it, and asks the code that comes out what its probes give. Nothing that it says
is believed: it is told no expected result, and its words are compared elsewhere. Probes run in a child, and
a new one takes over where a probe hangs or ends it.

Values travel as `turngym.envs.tool.python.inside.encode` writes them; its source comes with the request.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import itertools
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_IMPORT_S = 10
_PROBE_S = 4.0
_MAX_BYTES = 1 << 16


def main() -> None:
    """Answer every probe of every module with a line: `{"value": …}` or `{"error": type}`."""
    request = json.loads(sys.stdin.buffer.read())
    words = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    root = Path.cwd() / "repository"
    write_files(root, request["files"])
    if request["diff"] and not apply(root, request["diff"], request["package"]):
        words.write(json.dumps({"refused": "the diff can't be applied"}) + "\n")
        return
    codec: dict[str, Any] = {"__name__": "codec"}
    exec(request["codec"], codec)
    sys.path.insert(0, str(root))
    sys.dont_write_bytecode = True
    for name, probes in request["probes"]:
        for answer in itertools.islice(answers(name, probes, codec["encode"]), len(probes)):
            words.write(json.dumps(answer) + "\n")
            words.flush()


def write_files(root: Path, files: dict[str, str]) -> None:
    """Write the files of a repository."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def apply(root: Path, diff: str, package: str) -> bool:
    """Apply what a diff does to the package's code, and leave out what it does elsewhere."""
    import subprocess  # noqa: PLC0415 - start-up counts here

    argv = ["git", "apply", "--whitespace=nowarn", f"--include={package}/*.py", "-"]
    return subprocess.run(argv, input=diff.encode(), cwd=root, check=False, timeout=20).returncode == 0


def answers(name: str, probes: list[str], encode: Any) -> Iterator[dict[str, Any]]:
    """What each probe gives, found out by a child; a new one goes on where that hangs or ends."""
    signal.alarm(_IMPORT_S)  # ends this process: there is nothing to ask then
    with contextlib.suppress(BaseException):  # the first probe will say what it is
        importlib.import_module(name)
    signal.alarm(0)
    done = 0
    while done < len(probes):
        for line in ask(name, probes[done:], encode):
            done += 1
            yield line
        if done < len(probes):
            done += 1
            yield {"error": "no answer"}


def ask(name: str, probes: list[str], encode: Any) -> Iterator[dict[str, Any]]:
    """Answers of one child, until it takes too long for one, or says what is none."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for probe in probes:
                os.write(writer, json.dumps(value_of(name, probe, encode)).encode()[:_MAX_BYTES] + b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    said = b""
    while select.select([reader], [], [], _PROBE_S)[0]:
        chunk = os.read(reader, _MAX_BYTES)
        *lines, said = (said + chunk).split(b"\n")
        found = [one for line in lines if (one := parsed(line)) is not None]
        yield from found
        if not chunk or len(found) < len(lines):
            break
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)


def parsed(line: bytes) -> dict[str, Any] | None:
    """The answer in a line, or None."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def value_of(name: str, probe: str, encode: Any) -> dict[str, Any]:
    """Run a probe where all names of the module are known."""
    try:
        scope = dict(vars(importlib.import_module(name)))
        tree = ast.parse(probe)
        last = tree.body[-1]
        assert isinstance(last, ast.Expr)
        tree.body[-1] = ast.Assign([ast.Name("_value", ast.Store())], last.value)
        code = compile(
            ast.fix_missing_locations(tree), "<probe>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        )
        running = eval(code, scope)
        if running is not None:
            import asyncio  # noqa: PLC0415 - likewise

            asyncio.run(running)
        return {"value": encode(scope["_value"])}
    except BaseException as error:  # noqa: BLE001 - whatever the code raises is its answer
        return {"error": type(error).__name__}


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
