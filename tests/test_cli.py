"""The command line: results on stdout, one readable message for bad input, a clean stop that can be resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import turngym
from turngym.cli import main
from turngym.envs.text.corridor import Corridor
from turngym.errors import HarnessFault
from turngym.events import Listener, Measured, RunEnded, RunStarted
from turngym.trainers.config import TrainConfig

EVAL = ("eval", "turngym/Corridor-v0", "--policy", "scripted:epsilon?epsilon=0.3", "--tasks", "12", "--quiet")


def run(*words: str) -> int:
    """Exit code of the command line, in this process."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


def shell(*words: str, **more: Any) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-c", "from turngym.cli import main; main()", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


# ---------------------------------------------------------------------- at rest


def test_help_answers_without_loading_what_only_commands_need() -> None:
    code = (
        "import sys\nfrom turngym.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'transformers', 'gymnasium', 'numpy', 'matplotlib', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("list", "play", "eval", "train", "env", "sandbox"):
        assert f" {command} " in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.strip() == turngym.__version__


def test_list_names_every_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    assert "turngym/Corridor-v0" in capsys.readouterr().out
    assert run("list", "--json") == 0
    envs = {env["id"]: env for env in json.loads(capsys.readouterr().out)}
    assert envs["turngym/Corridor-v0"]["forking"] == "exact"


def test_play_prints_an_episode(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("play", "turngym/Corridor-v0", "--seed", "3", "-o", "rooms=4") == 0
    out = capsys.readouterr().out
    assert "in room 3" in out
    assert "success (terminated)" in out


def test_a_human_plays_from_standard_input() -> None:
    process = shell(
        "play", "turngym/Corridor-v0", "--policy", "human", "-o", "rooms=4", stdin=subprocess.PIPE
    )
    out, _ = process.communicate("go east\nwhat?\n", timeout=60)
    assert process.returncode == 0
    assert '{"direction": "east"}' in out
    assert "no tool call found" in out
    assert "left the episode" in out


def test_env_check_says_what_each_check_saw(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("env", "check", "turngym/Corridor-v0", "-o", "rooms=4", "--actions", "5", "--turns", "3")
    assert run(*words) == 0
    assert capsys.readouterr().out.startswith("turngym/Corridor-v0: ok")
    assert run(*words, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert all(check["passed"] for check in report["checks"])


def test_env_check_names_the_broken_sentence_and_its_repair(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Corridor, "copy_state", lambda self, state: state)  # forks share their state
    assert run("env", "check", "turngym/Corridor-v0", "--actions", "5") == 1
    out = capsys.readouterr().out
    assert out.startswith("turngym/Corridor-v0: FAIL")
    assert "contract: " in out
    assert "repair: " in out


# ---------------------------------------------------------------------- eval


def test_eval_prints_a_table_and_writes_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*EVAL, "--attempts", "2", "--json", str(tmp_path / "f.json")) == 0
    captured = capsys.readouterr()
    assert "pass^2" in captured.out
    assert captured.err == ""
    figures = json.loads((tmp_path / "f.json").read_text())["figures"]
    assert figures["eval/tasks"] == 12
    assert 0 <= figures["eval/pass^2"] <= figures["eval/success"] <= figures["eval/pass@2"] <= 1


def test_eval_is_a_function_of_its_seed(tmp_path: Path) -> None:
    figures = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        run(*EVAL, "--seed", seed, "--json", str(tmp_path / name))
        data = json.loads((tmp_path / name).read_text())["figures"]
        figures.append({k: v for k, v in data.items() if k != "eval/seconds"})
    assert figures[0] == figures[1] != figures[2]


def test_eval_compares_two_policies_on_the_same_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert (
        run(*EVAL, "--compare", "scripted:random", "--json", str(tmp_path / "f.json"), "--out", str(out)) == 0
    )
    assert "paired by task" in " ".join(capsys.readouterr().out.split())
    figures = json.loads((tmp_path / "f.json").read_text())["figures"]
    assert figures["compare/difference"] == pytest.approx(figures["eval/success"] - figures["other/success"])
    assert (out / "first" / "results.jsonl").exists()
    assert (out / "second" / "results.jsonl").exists()


def test_eval_keeps_a_run_folder_and_does_not_touch_a_full_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*EVAL, "--out", str(tmp_path)) == 0
    kept = {p.name: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert kept.keys() == {
        "config.toml",
        "evaluation.json",
        "metrics.jsonl",
        "results.jsonl",
        "summary.json",
        "eval-000000.jsonl",
    }
    capsys.readouterr()
    assert run(*EVAL, "--out", str(tmp_path)) == 2
    assert "go on with it" in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == kept


def test_eval_with_tasks_of_an_environment_without_folds(capsys: pytest.CaptureFixture[str]) -> None:
    env = "turngym/FrozenLake-v1"
    assert run("eval", env, "--policy", "scripted:random", "--tasks", "3", "--quiet") == 0
    assert run("eval", env, "--policy", "scripted:random", "--tasks", "3", "--quiet", "--fold", "test") == 2
    assert "fold" in capsys.readouterr().err


def test_ctrl_c_stops_cleanly_and_resume_finds_what_an_uninterrupted_run_finds(tmp_path: Path) -> None:
    words = (
        "eval",
        "turngym/Corridor-v0",
        "--policy",
        "scripted:random",
        "--tasks",
        "150",
        "--attempts",
        "2",
        "--quiet",
    )
    out = tmp_path / "run"
    process = shell(*words, "--out", str(out))
    deadline = time.monotonic() + 120
    while not (out / "results.jsonl").exists() or len((out / "results.jsonl").read_bytes()) < 500:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume goes on" in err
    assert "Traceback" not in err
    assert json.loads((out / "summary.json").read_text())["reason"] == "interrupted"
    assert run(*words, "--out", str(out), "--resume", "--json", str(tmp_path / "resumed")) == 0
    assert run(*words, "--json", str(tmp_path / "whole")) == 0
    resumed, whole = (json.loads((tmp_path / n).read_text())["figures"] for n in ("resumed", "whole"))
    assert resumed | {"eval/seconds": 0} == whole | {"eval/seconds": 0}


# ---------------------------------------------------------------------- train


class Stand:
    """In the place of `trainers.loop`: emits what a run emits, learns nothing."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.calls: list[dict[str, Any]] = []

    def train(
        self, config: TrainConfig, *, folder: Path, listeners: Sequence[Listener], resume: bool
    ) -> None:
        self.calls.append({"config": config, "folder": folder, "resume": resume})
        reason = "done" if self.error is None else "interrupted"
        figures = {
            "eval/success": 0.5,
            "eval/success_low": 0.4,
            "eval/success_high": 0.6,
            "eval/tasks": 200.0,
        }
        progress = {"progress/env_steps": 10.0, "progress/policy_tokens": 90.0, "progress/train_s": 3.0}
        for event in (
            RunStarted("train", config.to_mapping(), 0, 1),
            Measured(0, figures),
            Measured(1, figures | progress),
            RunEnded(reason),
        ):
            for listener in listeners:
                listener.on(event)
        if self.error is not None:
            (folder / "checkpoints" / "update-000001").mkdir(parents=True, exist_ok=True)
            raise self.error


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stand:
    made = Stand()
    monkeypatch.setitem(sys.modules, "turngym.trainers.loop", made)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    return made


def test_train_runs_a_file_or_a_recipe_with_overrides(
    stand: Stand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text("[run]\nupdates = 7\n")
    assert run("train", "mine.toml", "--set", "run.seed=3", "--set", "credit.rule=rloo", "--quiet") == 0
    call = stand.calls[0]
    assert (call["config"].run.updates, call["config"].run.seed, call["config"].credit.rule) == (7, 3, "rloo")
    assert (call["folder"], call["resume"]) == (Path("runs/mine"), False)
    assert "before  0.500 [0.400, 0.600]" in capsys.readouterr().out
    assert (tmp_path / "runs" / "mine" / "curve.png").exists()
    assert run("train", "demo", "--out", "elsewhere", "--quiet") == 0
    assert stand.calls[1]["folder"] == Path("elsewhere")


def test_train_stopped_by_ctrl_c_says_how_to_go_on_and_the_words_it_says_work(
    stand: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    stand.error = KeyboardInterrupt()
    assert run("train", "demo", "--set", "run.updates=9", "--out", "here", "--quiet") == 130
    said = capsys.readouterr().err
    assert "go on with: turngym train --resume --out here" in said
    stand.error = None
    assert run(*said.split("turngym ")[1].split(), "--quiet") == 0
    assert stand.calls[1]["resume"] is True
    assert stand.calls[1]["config"] == stand.calls[0]["config"]


def test_a_fault_of_a_training_run_is_one_message(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    stand.error = HarnessFault("the environments are broken")
    assert run("train", "demo", "--out", "here", "--quiet") == 2
    assert capsys.readouterr().err == "error: the environments are broken\n"


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["eval", "turngym/Corridr-v0", "--policy", "scripted:oracle"],
            "Did you mean 'turngym/Corridor-v0'?",
        ),
        (["play", "turngym/Corridor-v0", "-o", "romms=3"], "Did you mean 'rooms'?"),
        (["play", "turngym/Corridor-v0", "-o", "rooms"], "--option: write name=value"),
        (["play", "turngym/Corridor-v0", "-o", "rooms=2"], "3 ≤ rooms"),
        (["play", "turngym/Corridor-v0", "--policy", "scripted:orcale"], "Did you mean 'oracle'?"),
        (["play", "turngym/Corridor-v0", "--budget", "turn=3"], "Did you mean 'turns'?"),
        (["play", "turngym/Corridor-v0", "--budget", "turns=0"], "turns must be a positive"),
        (["eval", "turngym/Corridor-v0", "--policy", "oracle"], "Did you mean 'scripted:oracle'?"),
        (
            ["eval", "turngym/Corridor-v0", "--policy", "scripted:oracle", "--fold", "tset"],
            "Did you mean 'test'?",
        ),
        (["eval", "turngym/Corridor-v0", "--policy", "scripted:oracle", "--resume"], "--out DIR"),
        (
            ["eval", "turngym/Corridor-v0", "--policy", "scripted:oracle", "--temperature", "-1"],
            "temperature",
        ),
        (
            ["eval", "turngym/Corridor-v0", "--policy", "scripted:oracle", "--temperature", "nan"],
            "temperature",
        ),
        (["play", "turngym/Corridor-v0", "-o", "rooms=abc"], "Corridor: rooms = 'abc'"),
        (["play", "turngym/Corridor-v0", "-o", "rooms=5.5"], "Corridor: rooms = 5.5"),
        (["play", "turngym/GuessNumber-v0", "-o", "turn_reward=high"], "turn_reward = 'high'"),
        (["play", "turngym/Corridor-v0", "-o", "fold=tset"], "Did you mean 'test'?"),
        (["play", "turngym/Corridor-v0", "--policy", "local:sprout?max_slots=many"], "max_slots = 'many'"),
        (["play", "nomod:turngym/Corridor-v0"], "no module 'nomod'"),
        (
            ["train", "demo", "--set", 'tasks.env="turngym/FrozenLake-v1"', "--set", "tasks.options={}"],
            "tasks.folds = false",
        ),
        (
            ["eval", "turngym/Corridor-v0", "--policy", "local:sprout", "--budget", "turn_tokens=3000"],
            "a longer window",
        ),
        (["train", "dmeo"], "Did you mean 'demo'?"),
        (["train", "no/such.toml"], "can't read the configuration"),
        (["train"], "turngym train --resume --out DIR"),
        (["train", "demo", "--set", "run.updatse=3"], "Did you mean 'updates'?"),
        (["train", "demo", "--set", "rnu.updates=3"], "Did you mean 'run'?"),
        (["train", "demo", "--set", "run.updates=many"], "updates must be int"),
        (["env", "check", "turngym/Corridr-v0"], "Did you mean 'turngym/Corridor-v0'?"),
    ],
)
def test_bad_input_is_one_readable_message_and_exit_code_2(
    words: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert says in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert not list(tmp_path.iterdir())


def test_usage_errors_have_exit_code_2_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("eval", "turngym/Corridor-v0") == 2
    assert "--policy" in capsys.readouterr().err
    oracle = ("eval", "turngym/Corridor-v0", "--policy", "scripted:oracle")
    assert run(*oracle, "--tasks", "0") == 2
    assert run(*oracle, "--seed", "-1") == 2
    capsys.readouterr()
    assert run(*oracle, "--json", "no/such/folder/figures.json") == 2
    assert "no folder" in capsys.readouterr().err
    assert run("evla") == 2


def test_a_file_that_can_not_be_written_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(*EVAL, "--out", str(tmp_path / "file")) == 2
    assert "error: " in capsys.readouterr().err


def test_traceback_is_shown_where_it_is_asked_for() -> None:
    process = shell("play", "turngym/Corridr-v0", "--traceback")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" in err
    assert "UnknownName" in err


def test_every_attempt_lost_to_faults_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: Any, action: str) -> Any:
        raise OSError("no floor")

    monkeypatch.setattr(Corridor, "act", broken)
    assert run(*EVAL) == 2
    captured = capsys.readouterr()
    assert "no attempt counted" in captured.err
    assert "no attempt counted" in captured.out
