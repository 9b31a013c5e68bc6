# ruff: noqa: PLC0415
"""The command line: `turngym list | play | eval | train | env check | sandbox`.

Each command imports what it needs when it runs, so that `turngym --help` answers at once and nothing but training
needs torch. What is wrong with the input is one message on standard error and exit code 2; `--traceback` shows where
it came from. Results go to standard output, progress to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import turngym
from turngym.cli_sandbox import sandbox_app
from turngym.errors import TurngymError

if TYPE_CHECKING:
    from turngym.agents.loop import LoopOptions
    from turngym.agents.policy import Policy
    from turngym.events import Listener
    from turngym.tasks.task import Task
    from turngym.trainers.config import TrainConfig
    from turngym.trainers.results import Evaluation

BAD_INPUT, INTERRUPTED = 2, 130

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A gym for language-model agents that act over many turns.",
    epilog="--traceback after any command shows where an error came from.",
)
env_app = typer.Typer(no_args_is_help=True, help="For authors of environments.")
app.add_typer(env_app, name="env")
app.add_typer(sandbox_app, name="sandbox")

EnvId = Annotated[str, typer.Argument(metavar="ENV", help="An environment's id; `turngym list` shows them.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE", help="Constructor option of the environment; repeatable."
    ),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--budget", metavar="NAME=VALUE", help="Limit of one path (turns, turn_tokens, …); repeatable."
    ),
]
Temperature = Annotated[float, typer.Option(help="Of sampling; 0 is greedy.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]


def _with_folder(path: Path | None) -> Path | None:
    """Said before the work, not after it."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}: make it first")
    return path


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", callback=_with_folder, help='Write {"figures": {name: number}} there.'
    ),
]
_POLICY_HELP = "scripted:oracle, scripted:random, scripted:epsilon?epsilon=0.3, local:sprout, local:./folder, local:org/name"


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script. Always ends in `SystemExit`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    traceback = "--traceback" in words
    try:
        app(args=[w for w in words if w != "--traceback"], prog_name="turngym")
    except (TurngymError, OSError) as error:
        if traceback:
            raise
        name = "" if isinstance(error, TurngymError) else f"{type(error).__name__}: "
        typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
        typer.echo(f"{name}{error}", err=True)
        raise SystemExit(BAD_INPUT) from None


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(turngym.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# ---------------------------------------------------------------------- list, play, env check


@app.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array on standard output.")] = False,
) -> None:
    """Show every registered environment."""
    from dataclasses import asdict

    from turngym.registry import list_envs
    from turngym.view.console import stdout
    from turngym.view.report import envs_table

    envs = list_envs()
    if as_json:
        typer.echo(json.dumps([asdict(env) for env in envs], indent=1))
    else:
        stdout().print(envs_table(envs))


@app.command()
def play(
    env: EnvId,
    policy: Annotated[str, typer.Option(help=f"human, {_POLICY_HELP}.")] = "scripted:oracle",
    seed: Annotated[int, typer.Option(min=0, help="Of the episode and of the policy.")] = 0,
    option: Options = None,
    budget: Limits = None,
    temperature: Temperature = 1.0,
) -> None:
    """Watch a policy play one episode, or play it yourself (--policy human)."""
    import asyncio

    from turngym.agents.loop import check_first_prompt
    from turngym.agents.policies import load_policy
    from turngym.registry import make
    from turngym.view.console import stdout
    from turngym.view.play import Human, watch

    console = stdout()
    options = _loop_options(budget, temperature)
    made = make(env, **_env_options(option))
    _hush_bars(policy)
    player = Human(console) if policy == "human" else load_policy(policy)

    async def run() -> None:
        try:
            await check_first_prompt(made, player, options, task_seed=seed)
            await watch(made, player, options, console, seed=seed)
        finally:
            made.close()
            await player.close()

    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@env_app.command("check")
def check(
    env: EnvId,
    option: Options = None,
    seed: Annotated[int, typer.Option(min=0, help="Everything that is tried follows from it.")] = 0,
    turns: Annotated[int, typer.Option(min=1, help="Turns of an episode that is forked at every turn.")] = 12,
    actions: Annotated[int, typer.Option(min=1, help="How many random and how many hostile actions.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON on standard output.")] = False,
) -> None:
    """Hold an environment to the contract: seeds, forks, isolation, bad actions."""
    from dataclasses import asdict, replace
    from functools import partial

    from turngym.envs.checker import check_env
    from turngym.registry import make
    from turngym.view.console import stdout
    from turngym.view.report import check_lines

    factory = partial(make, env, **_env_options(option))
    report = replace(check_env(factory, seed=seed, turns=turns, actions=actions), subject=env)
    if as_json:
        typer.echo(json.dumps({"ok": report.ok, **asdict(report)}, indent=1))
    else:
        stdout().print(check_lines(report), soft_wrap=True)
    if not report.ok:
        raise typer.Exit(1)


# ---------------------------------------------------------------------- eval


@app.command("eval")
def eval_command(
    env: EnvId,
    policy: Annotated[str, typer.Option(help=f"{_POLICY_HELP}.")],
    tasks: Annotated[int, typer.Option(min=1, help="How many tasks.")] = 200,
    attempts: Annotated[int, typer.Option(min=1, help="Paths per task, for pass@k and pass^k.")] = 1,
    fold: Annotated[
        str | None,
        typer.Option(help="Fold of the tasks. By default test, where the environment keeps folds."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Root of every random number.")] = 0,
    compare: Annotated[
        str | None, typer.Option(metavar="POLICY", help="A second policy, on the same tasks.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep results there, as they come.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the evaluation in --out.")] = False,
    option: Options = None,
    budget: Limits = None,
    temperature: Temperature = 1.0,
    live_paths: Annotated[int, typer.Option(min=1, help="Paths that are live at once.")] = 64,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Play many tasks and report success with 95 % intervals."""
    from turngym.agents.policies import load_policy
    from turngym.errors import ConfigError, HarnessFault
    from turngym.trainers.results import compare as compare_evaluations
    from turngym.view.console import stdout
    from turngym.view.report import comparison_line, evaluation_table

    if resume and out is None:
        raise ConfigError("--resume goes on with an evaluation in a folder: name it with --out DIR")
    task_set, described = _tasks(env, tasks, fold, seed, _env_options(option))
    options = _loop_options(budget, temperature)
    specs = [policy] if compare is None else [policy, compare]
    _hush_bars(*specs)
    players = [load_policy(spec) for spec in specs]
    done: list[Evaluation] = []
    try:
        for spec, player, name in zip(specs, players, ("first", "second"), strict=False):
            done.append(
                _evaluate(
                    task_set,
                    player,
                    quiet=quiet,
                    folder=out / name if out is not None and compare is not None else out,
                    attempts=attempts,
                    options=options,
                    seed=seed,
                    live_paths=live_paths,
                    resume=resume,
                    run_config={
                        "policy": {"spec": spec},
                        "tasks": described | {"attempts": attempts, "seed": seed},
                    },
                )
            )
    except KeyboardInterrupt:
        kept = "nothing was kept: with --out DIR, an evaluation can be resumed"
        _stop(kept if out is None else f"finished tasks are in {out}: the same command with --resume goes on")
    console = stdout()
    console.print(evaluation_table(done))
    figures = done[0].metrics()
    if compare is not None:
        result = compare_evaluations(*done)
        console.print(comparison_line(result, specs))
        figures |= done[1].metrics("other") | result.metrics()
    if json_file is not None:
        _write_figures(json_file, figures)
    if not all(evaluation.success.tasks for evaluation in done):
        raise HarnessFault(
            "no attempt counted: every path ended in a fault; the log above names each of them"
        )


def _evaluate(
    tasks: Sequence[Task], policy: Policy, *, quiet: bool, folder: Path | None, **how: Any
) -> Evaluation:
    """Evaluate with the console and, where asked for, a run folder listening."""
    import asyncio

    from turngym.trainers.evaluate import evaluate
    from turngym.view.console import display
    from turngym.view.run_folder import RunFolder

    kept: list[Listener] = []
    if folder is not None:
        kept.append(
            RunFolder(folder, keep_trees_every=1, tree_format="jsonl", curve=False, tensorboard=False)
        )

    async def run(shown: list[Listener]) -> Evaluation:
        try:
            return await evaluate(tasks, policy, folder=folder, listeners=[*kept, *shown], **how)
        finally:
            await policy.close()

    with display(quiet) as shown:
        return asyncio.run(run(shown))


def _tasks(
    env_id: str, count: int, fold: str | None, seed: int, options: dict[str, Any]
) -> tuple[list[Task], dict[str, Any]]:
    """The tasks of an evaluation and their description. Makes the environment once, so that a bad id, option or
    fold is refused before anything is loaded."""
    import inspect

    from turngym.errors import ConfigError
    from turngym.registry import make
    from turngym.tasks.task import procedural

    made = make(env_id, **options | ({"fold": fold} if fold is not None else {}))
    keeps_folds = "fold" in inspect.signature(type(made)).parameters
    made.close()
    if fold is None and keeps_folds:
        fold = "test"
    if fold is not None and not keeps_folds:
        raise ConfigError(f"{env_id} does not keep folds apart: leave --fold out, its tasks differ by seed")
    tasks = procedural(env_id, fold=fold, count=count, seed=seed, options=options)
    return tasks, {"env": env_id, "count": count, "fold": fold, "options": options}


# ---------------------------------------------------------------------- train


@app.command()
def train(
    config: Annotated[
        str | None,
        typer.Argument(metavar="CONFIG.toml|RECIPE", help="A file, or a recipe that ships with turngym."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Override a field; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run folder; by default runs/NAME.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint in the folder.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a policy, and leave a run folder with its curve."""
    from turngym.registry import import_extra
    from turngym.view.console import display, stdout
    from turngym.view.report import training_lines
    from turngym.view.run_folder import RunFolder

    chosen = _train_config(config, out, resume).override(setting or [])
    folder = out or Path("runs") / Path(config or "run").stem
    listeners: list[Listener] = [RunFolder(folder, keep_trees_every=chosen.run.keep_trees_every)]
    loop = import_extra("turngym.trainers.loop", extra="train")
    _hush_bars(chosen.policy.spec)
    try:
        with display(quiet) as shown:
            loop.train(chosen, folder=folder, listeners=[*listeners, *shown], resume=resume)
    except KeyboardInterrupt:
        saved = any(folder.glob("checkpoints/update-*"))
        _stop(f"go on with: turngym train --resume --out {folder}" if saved else "before anything was learnt")
    summary = json.loads((folder / "summary.json").read_bytes())
    stdout().print(training_lines(summary, folder), soft_wrap=True)


def _train_config(config: str | None, out: Path | None, resume: bool) -> TrainConfig:
    from turngym.errors import ConfigError
    from turngym.trainers.config import TrainConfig
    from turngym.trainers.recipes import load_recipe

    if config is not None:
        return load_recipe(config)
    if not resume or out is None:
        raise ConfigError(
            "name a configuration or a recipe, or go on with a run: turngym train --resume --out DIR"
        )
    return TrainConfig.load(out / "config.toml")


# ---------------------------------------------------------------------- lab


@app.command()
def lab(
    rules: Annotated[
        list[str] | None, typer.Argument(metavar="[RULE]...", help="Credit rules; by default all of them.")
    ] = None,
    problem: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A problem; repeatable. By default all of them.")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1000, help="Trees a problem that a claim is judged on.")
    ] = 100_000,
    seed: Annotated[int, typer.Option(min=0, help="Everything follows from it.")] = 0,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one a core.")] = None,
    off_policy: Annotated[
        bool, typer.Option(help="Losses and corrections on trees that another policy sampled, as well.")
    ] = True,
    docs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the page credit.md and its plot there.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Hold every credit rule against the exact policy gradient of small problems."""
    from turngym.registry import import_extra
    from turngym.trainers import lab as exact_lab
    from turngym.trainers.lab import report
    from turngym.view.console import stdout

    how: dict[str, Any] = {"samples": samples, "seed": seed, "problems": problem, "workers": workers}
    corrections = import_extra("turngym.trainers.lab.corrections", extra="train") if off_policy else None
    results = exact_lab.run(rules=rules, on_done=lambda name: typer.echo(f"credit: {name}", err=True), **how)
    stdout().print(report.table(results))
    figures, found = exact_lab.figures(results), []
    if corrections is not None:
        found = corrections.run_corrections(
            on_done=lambda name: typer.echo(f"off policy: {name}", err=True), **how
        )
        stdout().print(report.off_policy_table(found))
        figures |= report.off_policy_figures(found)
    if json_file is not None:
        _write_figures(json_file, figures)
    if docs is not None:
        report.write_docs(docs, results, found, samples=samples, seed=seed)
    if any(verdict.refuted for verdict in exact_lab.verdicts(results)):
        raise typer.Exit(1)


# ---------------------------------------------------------------------- shared


def _hush_bars(*specs: str) -> None:
    """Switch off the bars with which transformers loads and saves weights: they tear the display. Downloads keep theirs."""
    if any(spec.startswith("local:") for spec in specs):
        from turngym.registry import import_extra

        import_extra("transformers.utils.logging", extra="train").disable_progress_bar()
        import_extra("huggingface_hub.utils", extra="train").enable_progress_bars()


def _env_options(option: list[str] | None) -> dict[str, Any]:
    from turngym.options import parse_options

    return parse_options(option or (), where="--option")


def _loop_options(budget: list[str] | None, temperature: float, **more: Any) -> LoopOptions:
    from turngym.agents.loop import LoopOptions
    from turngym.options import parse_options
    from turngym.types import Budget, from_mapping

    limits: Budget = from_mapping(Budget, parse_options(budget or (), where="--budget"), where="--budget")
    return LoopOptions(budget=limits, temperature=temperature, **more)


def _write_figures(path: Path, figures: dict[str, float]) -> None:
    path.write_text(json.dumps({"figures": figures}, indent=1) + "\n", encoding="utf-8")


def _stop(hint: str) -> NoReturn:
    typer.echo(f"stopped; {hint}", err=True)
    raise typer.Exit(INTERRUPTED)
