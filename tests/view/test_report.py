"""Tables say what was counted and what was not."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from turngym.registry import EnvSummary
from turngym.trainers.results import Attempt, Evaluation, TaskResult, compare
from turngym.types import Outcome, StopReason
from turngym.view.report import comparison_line, envs_table, evaluation_table, training_lines

WON = Attempt(Outcome.SUCCESS, StopReason.TERMINATED, 1.0, 4, 40)
LOST = Attempt(Outcome.FAILURE, StopReason.TERMINATED, 0.0, 6, 60)
CUT = Attempt(Outcome.TRUNCATED, StopReason.TURNS, 0.0, 8, 80)


def evaluation(policy: str, *attempts: tuple[Attempt, ...], **more: Any) -> Evaluation:
    results = tuple(TaskResult(task_id=f"t{i}", attempts=a, **more) for i, a in enumerate(attempts))
    return Evaluation(policy=policy, attempts=2, results=results)


def text_of(renderable: Any) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rows_of(renderable: Any) -> dict[str, str]:
    pairs = (line.strip().split("  ", 1) for line in text_of(renderable).splitlines() if "  " in line.strip())
    return {name: " ".join(rest.split()) for name, rest in pairs}


def test_an_evaluation_lists_success_outcomes_and_cost() -> None:
    rows = rows_of(
        evaluation_table(
            [evaluation("scripted:x", (WON, WON), (WON, CUT), (LOST, CUT), faults={"env_fault": 1})]
        )
    )
    assert rows["success"].startswith("0.500 [")
    assert rows["pass@2"].startswith("0.667 [")
    assert rows["pass^2"].startswith("0.333 [")
    assert (rows["attempts"], rows["failed"], rows["cut short"], rows["faults"]) == (
        "6",
        "1",
        "2 (turns 2)",
        "3",
    )
    assert (rows["reward"], rows["turns"]) == ("0.500", "5.7")
    assert "missing" not in rows


def test_attempts_that_are_missing_are_said_and_nothing_counted_is_no_number() -> None:
    rows = rows_of(evaluation_table([evaluation("scripted:x", (), ())]))
    assert rows["success"] == "no attempt counted"
    assert (rows["missing"], rows["reward"]) == ("4", "–")


def test_two_policies_stand_side_by_side_with_their_difference() -> None:
    first, second = evaluation("a", (WON, WON), (WON, LOST)), evaluation("b", (LOST, LOST), ())
    assert rows_of(evaluation_table([first, second]))["attempts"] == "4 2"
    line = text_of(comparison_line(compare(first, second), ["a", "b"]))
    assert "a − b: +1.000 [" in line
    assert "better on 1 tasks, worse on 0; 1 tasks left out" in line


def test_environments_are_listed_by_family_with_what_they_need() -> None:
    envs = [
        EnvSummary(
            id="turngym/A-v0",
            family="text",
            forking="exact",
            description="An A.",
            available=True,
            install=None,
        ),
        EnvSummary(
            id="turngym/B-v0",
            family="adapters",
            forking="replay",
            description="A [B].",
            available=False,
            install="pip install 'turngym[b]'",
        ),
    ]
    text = text_of(envs_table(envs))
    assert (
        text.index("text/")
        < text.index("turngym/A-v0")
        < text.index("adapters/")
        < text.index("turngym/B-v0")
    )
    assert "A [B]." in text
    assert "pip install 'turngym[b]'" in text


def test_a_training_run_that_was_not_evaluated_still_has_a_last_word() -> None:
    summary = {"updates": 3, "env_steps": 1200.0, "policy_tokens": 1e5, "train_seconds": 12.0}
    evaluated = summary | {
        "success_before": 0.3,
        "interval_before": [0.2, 0.4],
        "success_after": 0.9,
        "interval_after": [0.8, 1.0],
        "held_out_tasks": 200.0,
    }
    assert "3 updates, 1,200 env steps, 100,000 tokens, 12 s of training" in text_of(
        training_lines(summary, Path("runs/x"))
    )
    text = text_of(training_lines(evaluated, Path("runs/x")))
    assert "on 200 tasks" in text
    assert "after   0.900 [0.800, 1.000]" in text
    assert "runs/x/curve.png" in text
