"""What the lab found, as a table for people, a page and a plot for the docs.

Everything that is written follows from the results; nothing is typed in by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from turngym.registry import import_extra
from turngym.trainers.lab.estimates import BUDGET
from turngym.trainers.lab.mdps import PROBLEMS, exact
from turngym.trainers.lab.study import FEWER, Result, Verdict, verdicts
from turngym.trainers.lab.trials import TRIALS

if TYPE_CHECKING:
    from turngym.trainers.lab.corrections import Corrected  # needs torch

COLUMNS = (
    "rule",
    "trees",
    "claim",
    "",
    "bias z",
    "limit",
    "scale",
    "tilt",
    "worst at",
    "cosine",
    "wrong signs",
    "variance",
    "ESS",
)


def _cells(verdict: Verdict) -> tuple[str, ...]:
    trial, astray = TRIALS[verdict.trial], verdict.astray
    where = ""
    if astray is not None:
        component = PROBLEMS[astray.problem].components[astray.quality.astray]
        where = f"{astray.problem}, {component}"
    return (
        verdict.trial,
        trial.plan,
        trial.claim,
        "held" if verdict.holds else "REFUTED" if verdict.refuted else "not seen",
        f"{verdict.bias_z:.1f}",
        f"{verdict.limit:.1f}",
        _range(verdict.scales),
        f"{astray.quality.tilt:.2f}" if astray is not None else "–",
        where,
        f"{verdict.mean('cosine'):.3f}",
        f"{verdict.mean('sign_error'):.3f}",
        f"{verdict.mean('variance'):.2f}",
        f"{verdict.mean('ess'):.0f}",
    )


def table(results: Sequence[Result]) -> Table:
    """One line a trial, over all problems."""
    out = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in COLUMNS:
        out.add_column(
            name, justify="left" if name in ("rule", "trees", "claim", "", "worst at") else "right"
        )
    for verdict in verdicts(results):
        out.add_row(*_cells(verdict), style="bold red" if verdict.refuted else "")
    return out


OFF_POLICY_COLUMNS = (
    "sampled by",
    "method",
    "bias z",
    "scale",
    "bias",
    "tilt",
    "cosine",
    "variance",
    "weights kept",
)


def off_policy_rows(found: Sequence[Corrected]) -> list[tuple[str, ...]]:
    """One line a behaviour and method: the largest bias and tilt over the problems, and means of the rest."""
    rows: list[tuple[str, ...]] = []
    for behaviour, method in dict.fromkeys((r.behaviour, r.method) for r in found):
        group = [r for r in found if (r.behaviour, r.method) == (behaviour, method)]
        q = [r.quality for r in group]
        rows.append(
            (
                behaviour,
                method,
                f"{max(x.bias_z for x in q):.1f}",
                _range([x.scale for x in q]),
                f"{max(x.bias.value for x in q):.2f}",
                f"{max(x.tilt for x in q):.2f}",
                f"{np.mean([x.cosine.value for x in q]):.3f}",
                f"{np.mean([x.variance.value for x in q]):.2f}",
                f"{np.mean([r.kept for r in group]):.2f}",
            )
        )
    return rows


def off_policy_table(found: Sequence[Corrected]) -> Table:
    """What became of trees that another policy sampled."""
    out = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for i, name in enumerate(OFF_POLICY_COLUMNS):
        out.add_column(name, justify="left" if i < 2 else "right")
    for row in off_policy_rows(found):
        out.add_row(*row)
    return out


def off_policy_figures(found: Sequence[Corrected]) -> dict[str, float]:
    """`bias_z/off_policy/BEHAVIOUR/METHOD` (largest over the problems), and means of `cosine/…` and `kept/…`."""
    out: dict[str, float] = {}
    for behaviour, method in dict.fromkeys((r.behaviour, r.method) for r in found):
        group = [r for r in found if (r.behaviour, r.method) == (behaviour, method)]
        name = f"off_policy/{behaviour}/{method}".replace(" ", "_")
        out[f"bias_z/{name}"] = max(r.quality.bias_z for r in group)
        out[f"cosine/{name}"] = float(np.mean([r.quality.cosine.value for r in group]))
        out[f"kept/{name}"] = float(np.mean([r.kept for r in group]))
    return out


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low}–{high}"


# ---------------------------------------------------------------------- docs


def write_docs(
    folder: Path, results: Sequence[Result], found: Sequence[Corrected], *, samples: int, seed: int
) -> None:
    """Write `credit.md` and `credit.png` into `folder`.

    Raises:
        MissingDependency: without matplotlib.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plot(folder / "credit.png", results)
    (folder / "credit.md").write_text(page(results, found, samples=samples, seed=seed), encoding="utf-8")


def page(results: Sequence[Result], corrections: Sequence[Corrected], *, samples: int, seed: int) -> str:
    """The page on credit, in Markdown."""
    found = verdicts(results)
    problems = list(dict.fromkeys(r.problem for r in results))
    parts = [
        _INTRODUCTION.format(
            samples=samples,
            seed=seed,
            budget=BUDGET,
            fewer=samples // FEWER,
            off_policy="" if corrections else " --no-off-policy",
        ),
        _markdown(COLUMNS, [_cells(verdict) for verdict in found]),
        _WORDS.format(budget=BUDGET),
        *([_OFF_POLICY, _markdown(OFF_POLICY_COLUMNS, off_policy_rows(corrections))] if corrections else ()),
        "\n## The problems\n",
        _markdown(
            ("problem", "what it plants", "states", "expected return", "length of the gradient"),
            [
                (
                    name,
                    PROBLEMS[name].about,
                    str(len(PROBLEMS[name].states)),
                    f"{(known := exact(PROBLEMS[name])).value:.3f}",
                    f"{float((known.gradient**2).sum()) ** 0.5:.3f}",
                )
                for name in problems
            ],
        ),
    ]
    for name in problems:
        parts += [f"\n## {name}\n", _markdown(_DETAILS, _details(name, results))]
    return "\n".join(parts) + "\n"


_INTRODUCTION = """# What each credit rule does to the gradient

*Written by `turngym lab --docs docs --samples {samples} --seed {seed}{off_policy}`; change the code, not this page.*

In a problem small enough for dynamic programming, the policy gradient is known exactly, and so is the advantage of every
action. So a credit rule need not be believed: draw many trees, let the rule score them, and hold the mean of
Σ A(n) ∇ log π(a|s) against the truth. Rules that claim to be unbiased are judged on {samples:,} trees a
problem, the others on {fewer:,}. All costs are stated at equal env steps, {budget} an update.

![How far each rule leads astray, and what its estimates are worth](credit.png)
"""

_WORDS = """
* **trees**: `group` branches at the root only; `coin` also where a coin fell on its edge when a state was reached; `failed`
  and `finished` fork paths after they ended, because they failed or at a random turn of theirs.
* **claim**: what the rule's docstring says. *unbiased*: the mean is the exact gradient. *scaled*: a constant times it.
* **bias z**: the largest distance of a component of the mean from the exact one, in standard errors, over all problems; an
  unbiased rule stays below **limit** with a chance of 99.9 %. What stands at 1000 is certain.
* **scale**: the multiple of the exact gradient that the mean comes nearest to, from the smallest to the largest over the
  problems. One number is a learning rate; a range means that some tasks are weighed more than others.
* **tilt**: what is left of the bias once the best scale is taken out, as a share of the gradient, in the worst problem
  where that is certain; no learning rate repairs it. **worst at** says where. "–": none that could be told from noise.
* **cosine**: between one update and the exact gradient. **wrong signs**: of the advantages that are not 0, against the
  exact ones. **variance**: of one update, over the squared length of the gradient, at the rule's own scale. **ESS**:
  rollouts with exact advantages that carry as much signal over noise as one update. All three are means over problems.
"""

_OFF_POLICY = """## Trees that another policy sampled

The same question to losses and corrections, with the advantages of `rloo`: what becomes of the gradient when the trees
come from a policy that is some updates old, was quantised, or never takes its less likely actions (cut). *nothing* takes
the trees as they are. Actions are one token long here, so what holds for a token's weight holds for a turn's. **weights
kept** is the effective share of the weights, (Σw)² / (n Σw²); p3o's penalty is in its own.

A token's weight forgets what the earlier actions would have changed; only the product over the path, without a cap, keeps
the gradient, and it costs variance. No weight brings back what the sampling policy never does.
"""

_DETAILS = (
    "rule",
    "bias",
    "bias z",
    "scale",
    "tilt",
    "cosine",
    "variance",
    "wrong signs",
    "silent",
    "ESS",
    "steps + replayed",
)


def _details(problem: str, results: Sequence[Result]) -> list[tuple[str, ...]]:
    return [
        (
            r.trial,
            str(q.bias),
            f"{q.bias_z:.1f}",
            f"{q.scale:.2f}",
            f"{q.tilt:.2f}",
            str(q.cosine),
            str(q.variance),
            str(q.sign_error),
            f"{q.silent:.2f}",
            f"{q.ess:.1f}",
            f"{q.steps:.1f} + {q.steps * q.replayed:.1f}",
        )
        for r in results
        if r.problem == problem
        for q in (r.quality,)
    ]


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def plot(path: Path, results: Sequence[Result]) -> None:
    """Tilt in the worst problem, and ESS over the problems, a bar a rule.

    Raises:
        MissingDependency: without matplotlib.
    """
    figure_module = import_extra("matplotlib.figure", extra="train")
    found = list(reversed(verdicts(results)))
    names, places = [verdict.trial for verdict in found], range(len(found))
    figure = figure_module.Figure(figsize=(10, 0.27 * len(found) + 1.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    tilt = [v.astray.quality.tilt if v.astray is not None else 0.0 for v in found]
    colours = ["tab:green" if TRIALS[name].claim != "biased" else "tab:red" for name in names]
    left.barh(places, tilt, color=colours)
    left.set_yticks(places, names, fontsize=8)
    left.set_xlabel("tilt: bias that no learning rate repairs, worst problem")
    right.barh(places, [verdict.mean("ess") for verdict in found], color=colours)
    right.set_xlabel(f"ESS of {BUDGET} env steps, mean over problems")
    left.set_title("green: unbiased, or but for a constant", fontsize=9, loc="left")
    figure.savefig(path, dpi=110, metadata={"Software": None})
