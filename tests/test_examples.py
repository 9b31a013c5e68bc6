"""The examples run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *words: str) -> str:
    """What `python -W error examples/<name> <words>` prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_basic_names_the_turn_that_lost_the_game() -> None:
    (lost,) = [line for line in run("basic.py").splitlines() if line.endswith("← lost here")]
    assert "-" in lost.split("}}")[1]  # and blames it


def test_the_whole_algorithm_updates_a_policy() -> None:
    (line,) = run("whole_algorithm.py", "1").splitlines()
    assert line.startswith("update")
    assert "success" in line


def test_hello_wins_on_the_optimal_branch_and_not_on_the_random_one() -> None:
    lines = run("hello.py").splitlines()
    assert lines[0].startswith("Take the key of the door's colour")
    assert "optimal: success True, reward 1.0" in lines
    assert "random: success False, reward 0.0" in lines
