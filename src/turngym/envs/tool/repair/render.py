"""Libraries as an agent sees them: without their probes, with names drawn from a seed."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_FOLDER = Path(__file__).parent / "libraries"
_BACKTICKS = re.compile(r"`(\w+)`")


@dataclass(frozen=True)
class Library:
    """The code of one library, and what tells whether it works."""

    name: str
    tree: ast.Module
    "without probes and names; never written to"
    probes: tuple[str, ...]
    "code whose last line is a value"
    names: Mapping[str, tuple[str, ...]]
    "other names for its own"


@functools.cache
def libraries() -> tuple[str, ...]:
    """Names of all libraries, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem != "__init__"))


@functools.cache
def library(name: str) -> Library:
    """Read a library."""
    tree = ast.parse((_FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    constants: dict[str, Any] = {}
    for line in list(tree.body):
        match line:
            case ast.Assign(targets=[ast.Name(id="PROBES" | "NAMES" as constant)]):
                constants[constant] = ast.literal_eval(line.value)
                tree.body.remove(line)
    return Library(name, tree, constants["PROBES"], constants["NAMES"])


def draw_names(of: Library, rng: np.random.Generator) -> dict[str, str]:
    """A name for each of the library's own names that may change: its own or another."""
    return {name: (name, *others)[int(rng.integers(1 + len(others)))] for name, others in of.names.items()}


def renamed(tree: ast.Module, names: Mapping[str, str]) -> ast.Module:
    """A copy of `tree` with other names, in docstrings where they stand in backticks."""
    copied = ast.parse(ast.unparse(tree))
    renamer = _Renamer(names)
    changed: ast.Module = renamer.visit(copied)
    return changed


def renamed_text(code: str, names: Mapping[str, str]) -> str:
    """`renamed` for a piece of code."""
    return ast.unparse(renamed(ast.parse(code), names))


class _Renamer(ast.NodeTransformer):
    _FIELDS = ("name", "id", "attr", "arg")

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in self._FIELDS:
            old = getattr(node, name, None)
            if isinstance(old, str) and old in self._names:
                setattr(node, name, self._names[old])
        if isinstance(node, ast.Global | ast.Nonlocal):
            node.names = [self._names.get(name, name) for name in node.names]
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            words = _BACKTICKS.sub(lambda m: f"`{self._names.get(m[1], m[1])}`", node.value.value)
            node.value = ast.Constant(words)
        return super().generic_visit(node)
