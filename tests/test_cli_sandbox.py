"""`turngym sandbox`: a line for each finding, or one report as JSON; the exit code tells what gave way."""

from __future__ import annotations

import json

import pytest

from turngym.cli import main
from turngym.sandbox import selfcheck
from turngym.sandbox.attacks import ATTACKS


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One check and one attack, on the backend that every machine can run and that refuses nothing."""
    name = "exec: a missing program"
    monkeypatch.setattr(selfcheck, "CONFORMANCE", {name: selfcheck.CONFORMANCE[name]})
    monkeypatch.setattr(selfcheck, "ATTACKS", [a for a in ATTACKS if a.name == "write a file of the host"])


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["sandbox", *words])
    return int(ended.value.code or 0)


def test_check_prints_each_finding_and_ends_with_1_where_an_attack_succeeds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("check", "unsafe-process") == 1
    passed, failed, total = capsys.readouterr().out.splitlines()
    assert passed.startswith("ok    exec: a missing program")
    assert failed.startswith("FAIL  write a file of the host")
    assert total.endswith("1 of 1 checks passed, 1 of 1 attacks succeeded")


def test_check_ends_with_0_where_nothing_gives_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(selfcheck, "ATTACKS", [])
    assert run("check", "unsafe-process") == 0
    assert capsys.readouterr().out.endswith("0 of 0 attacks succeeded\n")


def test_check_reports_as_json_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "unsafe-process", "--json") == 1
    told = capsys.readouterr()
    report = json.loads(told.out)
    assert (report["attacks"], report["succeeded"], report["ok"]) == (1, 1, False)
    assert "write a file of the host" in told.err


def test_check_names_the_nearest_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "bubblewarp") == 2
    assert "Did you mean 'bubblewrap'?" in capsys.readouterr().err
