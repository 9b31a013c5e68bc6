"""Repositories with one bug each.

An `Instance` is a line of the manifest: a library, a bug (see `mutate`), a seed for all else, and what was seen when it
was verified. `build` makes the repository from it: a package of three libraries, one of them broken, with tests that
don't notice, and the report of somebody who did.
"""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

import numpy as np

from turngym.envs.tool.python.inside import decode
from turngym.envs.tool.repair.mutate import planted
from turngym.envs.tool.repair.render import Library, draw_names, libraries, library, renamed, renamed_text
from turngym.seeding import generator

MANIFEST = Path(__file__).with_name("manifest.json")
_PACKAGES = ("basics", "commons", "helpers", "kit", "pantry", "toolbox", "utilities", "workbench")
_OTHERS = 2
_TESTS = 5

Answer = Mapping[str, Any]
"""What a probe gives: `{"value": …}`, encoded, or `{"error": type}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One bug that was verified."""

    library: str
    site: int
    "number of the place in the library"
    kind: str
    function: str
    "where it is"
    seed: int
    "names, package, other libraries"
    fails: tuple[int, ...]
    "numbers of the probes that notice"
    given: str
    "what the first of them gives instead, as JSON"

    @property
    def name(self) -> str:
        """Names the bug, whatever the repository around it looks like."""
        return f"{self.library}-{self.site}"


@dataclass(frozen=True, slots=True)
class Repository:
    """What the agent is given, and what is kept from it."""

    package: str
    files: tuple[tuple[str, str], ...]
    "path and text"
    report: str
    "what somebody noticed"
    path: str
    "the file with the bug"
    original: str
    "that file without it"
    probes: tuple[tuple[str, tuple[str, ...]], ...]
    "module and hidden probes, for every library of the package"
    expected: tuple[str, ...]
    "what they should give, in that order, as JSON"

    @property
    def broken(self) -> str:
        """The file with the bug, as the agent finds it."""
        return dict(self.files)[self.path]

    @property
    def solution(self) -> str:
        """The diff that takes the bug away."""
        lines = unified_diff(
            self.broken.splitlines(keepends=True),
            self.original.splitlines(keepends=True),
            f"a/{self.path}",
            f"b/{self.path}",
        )
        return "".join(lines)


@functools.cache
def manifest() -> tuple[Instance, ...]:
    """Every verified instance."""
    rows = json.loads(MANIFEST.read_text(encoding="utf-8"))["instances"]
    return tuple(Instance(**{**row, "fails": tuple(row["fails"])}) for row in rows)


@functools.cache
def expected() -> Mapping[str, tuple[Answer, ...]]:
    """Library → what its probes give while nothing is broken."""
    found: dict[str, list[Answer]] = json.loads(MANIFEST.read_text(encoding="utf-8"))["expected"]
    return {name: tuple(answers) for name, answers in found.items()}


def build(instance: Instance, known: Mapping[str, tuple[Answer, ...]] | None = None) -> Repository:
    """The repository of an instance; always the same.

    Args:
        instance: of the manifest, or one that is being verified.
        known: what `expected` will hold, while the manifest is made.
    """
    right = expected() if known is None else known
    rng = generator(instance.seed, "repair", instance.library)
    package = _PACKAGES[int(rng.integers(len(_PACKAGES)))]
    others = [name for name in libraries() if name != instance.library]
    chosen = sorted([instance.library, *(others[int(i)] for i in rng.permutation(len(others))[:_OTHERS])])
    files = {
        "README.md": _readme(package, [library(name) for name in chosen]),
        f"{package}/__init__.py": f'"""{package.capitalize()}: small things that are needed again and again."""\n',
    }
    probes: list[tuple[str, tuple[str, ...]]] = []
    original = report = ""
    for name in chosen:
        part, path = library(name), f"{package}/{name}.py"
        names = draw_names(part, rng)
        texts = tuple(renamed_text(probe, names) for probe in part.probes)
        probes.append((f"{package}.{name}", texts))
        files[path] = _source(part.tree, names)
        fails = instance.fails if name == instance.library else ()
        files[f"tests/test_{name}.py"] = _tests(f"{package}.{name}", texts, right[name], fails, rng)
        if name == instance.library:
            original, files[path] = files[path], _source(planted(part.tree, instance.site), names)
            if fails:
                wanted, given = right[name][fails[0]], json.loads(instance.given)
                report = _report(f"{package}.{name}", texts[fails[0]], wanted, given)
    answers = tuple(json.dumps(answer) for name in chosen for answer in right[name])
    path = f"{package}/{instance.library}.py"
    return Repository(package, tuple(files.items()), report, path, original, tuple(probes), answers)


def _source(tree: ast.Module, names: Mapping[str, str]) -> str:
    return ast.unparse(renamed(tree, names)) + "\n"


def _readme(package: str, parts: Iterable[Library]) -> str:
    lines = [f"- `{package}.{part.name}`: {ast.get_docstring(part.tree)}" for part in parts]
    return "\n".join(
        [f"# {package}", "", *lines, "", "Run the tests with `python3 -m unittest discover tests`.", ""]
    )


def _report(module: str, probe: str, wanted: Answer, given: Answer) -> str:
    code = "\n".join(f"    {line}" for line in f"from {module} import *\n{probe}".splitlines())
    return f"Somebody reports that this {_said(given)}:\n\n{code}\n\nBy the documentation it {_said(wanted)}."


def _said(answer: Answer) -> str:
    """
    >>> _said({"value": {"list": [1]}}), _said({"error": "KeyError"})
    ('gives [1]', 'raises KeyError')
    """
    if "value" in answer:
        return f"gives {decode(answer['value'])!r}"
    return "gives no answer" if answer["error"] == "no answer" else f"raises {answer['error']}"


def _tests(
    module: str,
    probes: tuple[str, ...],
    answers: tuple[Answer, ...],
    fails: tuple[int, ...],
    rng: np.random.Generator,
) -> str:
    """A test file with some of the probes that the bug passes."""
    passing = [i for i in range(len(probes)) if i not in fails and "global" not in probes[i]]
    chosen = sorted(int(i) for i in rng.permutation(passing)[:_TESTS])
    lines = ["import asyncio", "import unittest", "", f"from {module} import *", "", ""]
    lines += ["class Tests(unittest.IsolatedAsyncioTestCase):"]
    for number, i in enumerate(chosen, start=1):
        lines += [f"    async def test_{number}(self):", *_body(probes[i], answers[i]), ""]
    return "\n".join([*lines, "", 'if __name__ == "__main__":', "    unittest.main()", ""])


def _body(probe: str, answer: Answer) -> list[str]:
    tree = ast.parse(probe)
    last = ast.unparse(tree.body[-1])
    before = ast.unparse(ast.Module(tree.body[:-1], [])).splitlines()
    if "error" in answer:
        lines = [f"with self.assertRaises({answer['error']}):", *(f"    {line}" for line in (*before, last))]
    else:
        lines = [*before, f"self.assertEqual({last}, {decode(answer['value'])!r})"]
    return [f"        {line}" for line in lines]
