"""`docs/metrics.md` defines every key that is written. `undefined(keys)` serves other tests that make keys."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import turngym
from turngym.agents.loop import LoopOptions
from turngym.agents.policies.scripted import Mixture, Oracle
from turngym.envs.text.corridor import Corridor
from turngym.tasks.task import procedural
from turngym.trainers.evaluate import Evaluation, compare, evaluate
from turngym.types import Budget, Outcome, StopReason

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
WORDS = {
    "K": r"\d+",
    "REASON": "|".join(StopReason),
    "OUTCOME": f"{Outcome.ENV_FAULT}|{Outcome.HARNESS_FAULT}",
    "NAME": r"[a-z0-9_]+",
}


def defined() -> list[re.Pattern[str]]:
    """One pattern per row of a table whose first cell is a key."""
    keys = re.findall(r"^\| `([^`]+)` \| [^|]+ \| [^|]+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    patterns = []
    for key in keys:
        pattern = re.escape(key)
        for word, values in WORDS.items():
            pattern = pattern.replace(word, f"({values})")
        patterns.append(re.compile(pattern))
    return patterns


def undefined(keys: Iterable[str]) -> list[str]:
    """The keys that the page does not define."""
    patterns = defined()
    return [key for key in keys if not any(p.fullmatch(key.replace("other/", "eval/", 1)) for p in patterns)]


def evaluation(policy: Any, **options: Any) -> Evaluation:
    tasks = procedural("turngym/Corridor-v0", fold="test", count=6)
    return asyncio.run(
        evaluate(tasks, policy, attempts=3, make_env=lambda task: Corridor(**task.options), **options)
    )


def test_every_key_of_an_evaluation_is_defined() -> None:
    first, second = (
        evaluation(Oracle(), options=LoopOptions(budget=Budget(turns=6))),
        evaluation(Mixture(0.5)),
    )
    keys = [*first.metrics(), *second.metrics("other"), *compare(first, second).metrics()]
    assert len(keys) > 50
    assert undefined(keys) == []


def test_every_key_that_stands_in_the_trainers_is_defined() -> None:
    """Read off the source, so that a key of a rare path (a penalty, a fault) is not forgotten."""
    sections = {p.pattern.partition("/")[0] for p in defined()}
    keys = set()
    for path in (Path(turngym.__file__).parent / "trainers").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                section, slash, name = node.value.partition("/")
                if slash and section in sections and re.fullmatch(r"[a-z0-9_]+", name):
                    keys.add(node.value)
    assert len(keys) > 30
    assert undefined(sorted(keys)) == []


def test_a_key_that_is_not_on_the_page_is_noticed() -> None:
    assert undefined(
        ["eval/success", "eval/sucess", "eval/pass@x", "stop/turns", "stop/boredom", "other/pass^16_low"]
    ) == [
        "eval/sucess",
        "eval/pass@x",
        "stop/boredom",
    ]


def test_no_key_is_defined_twice() -> None:
    patterns = [p.pattern for p in defined()]
    assert len(patterns) == len(set(patterns)) > 60
