"""Results as tables, for people at a terminal. The same numbers go to JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from turngym.envs.checker import Report
from turngym.registry import EnvSummary
from turngym.trainers.results import Evaluation
from turngym.trainers.statistics import Comparison, Estimate

_VERDICT = {True: ("ok  ", "green"), False: ("FAIL", "bold red")}


def envs_table(envs: Sequence[EnvSummary]) -> RenderableType:
    """Every registered environment."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("id", "forks", "what it is"):
        table.add_column(column, overflow="fold")
    family = None
    for env in envs:
        if env.family != family:
            family = env.family
            table.add_row(Text(f"{family}/", style="dim"))
        about = Text(env.description)
        if env.install:
            about.append(f"\n{env.install}", style="yellow")
        table.add_row(Text(env.id, style="" if env.available else "dim"), env.forking, about)
    return table


def check_lines(report: Report) -> RenderableType:
    """What `turngym env check` saw, with the sentence of the contract and the repair where it failed."""
    lines = Text(f"{report.subject}: ").append(*_VERDICT[report.ok])
    for check in report.checks:
        lines.append("\n  ").append(*_VERDICT[check.passed]).append(f"  {check.name}: {check.seen}")
        if not check.passed:
            lines.append(f"\n        contract: {check.claim}\n        repair: {check.repair}", style="yellow")
    return lines


def evaluation_table(evaluations: Sequence[Evaluation]) -> RenderableType:
    """Estimates, outcomes and cost of one or more evaluations, side by side."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for evaluation in evaluations:
        table.add_column(Text(evaluation.policy), overflow="fold")
    summaries = [e.summary() for e in evaluations]
    for name in summaries[0]:
        table.add_row(
            name, *(Text(_estimate(s[name]), style="bold" * (name == "success")) for s in summaries)
        )
    metrics = [e.metrics("") for e in evaluations]
    for label, keys in (
        ("attempts", ("/attempts",)),
        ("failed", ("/outcome/failure",)),
        ("cut short", ("/outcome/truncated",)),
        ("faults", ("/faults/env_fault", "/faults/harness_fault")),
        ("missing", ("/attempts_missing",)),
    ):
        counts = [sum(m[k] for k in keys) for m in metrics]
        if label != "missing" or any(counts):
            table.add_row(
                label,
                *(
                    f"{c:,.0f}{_stops(m) if label == 'cut short' else ''}"
                    for c, m in zip(counts, metrics, strict=True)
                ),
            )
    table.add_row("reward", *(f"{m['/reward']:.3f}" if "/reward" in m else "–" for m in metrics))
    table.add_row("turns", *(f"{m['/turns']:.1f}" if "/turns" in m else "–" for m in metrics))
    table.add_row("env steps", *(f"{m['/env_steps']:,.0f}" for m in metrics))
    table.add_row("tokens", *(f"{m['/policy_tokens']:,.0f}" for m in metrics))
    note = Text(
        "Mean over tasks with 95 % intervals, clustered by task. Faults count nowhere else.", style="dim"
    )
    return Group(table, note)


def comparison_line(comparison: Comparison, names: Sequence[str]) -> RenderableType:
    """Who is better on the same tasks, and how sure that is."""
    a, b = names
    line = Text(f"{a} − {b}: ").append(_signed(comparison.difference), style="bold")
    line.append(f", p = {comparison.p_value:.2g} (exact, paired by task); ")
    line.append(f"better on {comparison.better} tasks, worse on {comparison.worse}")
    if comparison.left_out:
        line.append(f"; {comparison.left_out} tasks left out, since one of the two has no result")
    return line


def training_lines(summary: Mapping[str, Any], folder: Path) -> RenderableType:
    """What a training run came to, from its `summary.json`."""
    lines = Text()
    if "success_after" in summary:
        before, after = summary["interval_before"], summary["interval_after"]
        lines.append(f"held-out success on {summary['held_out_tasks']:.0f} tasks (95 % intervals)\n")
        lines.append(f"  before  {summary['success_before']:.3f} [{before[0]:.3f}, {before[1]:.3f}]\n")
        lines.append(
            f"  after   {summary['success_after']:.3f} [{after[0]:.3f}, {after[1]:.3f}]\n", style="bold green"
        )
    if summary["train_seconds"] is not None:
        lines.append(
            f"{summary['updates']} updates, {summary['env_steps']:,.0f} env steps, "
            f"{summary['policy_tokens']:,.0f} tokens, {summary['train_seconds']:,.0f} s of training\n"
        )
    return lines.append(f"{folder}/curve.png shows the way; {folder}/metrics.jsonl has every number")


def _estimate(estimate: Estimate) -> str:
    return str(estimate) if estimate.tasks else "no attempt counted"


def _signed(estimate: Estimate) -> str:
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def _stops(metrics: dict[str, float]) -> str:
    """Which limits cut attempts short."""
    ours = {k.removeprefix("/stop/"): v for k, v in metrics.items() if k.startswith("/stop/")}
    reasons = [
        f"{name} {count:.0f}" for name, count in ours.items() if name not in ("terminated", "env_limit")
    ]
    return f" ({', '.join(reasons)})" if reasons else ""
