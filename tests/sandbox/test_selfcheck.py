"""The suite that every backend has to pass, and proof that it can fail."""

from __future__ import annotations

import asyncio
import json

import pytest

from turngym.sandbox import selfcheck
from turngym.sandbox.attacks import ATTACKS, Attack
from turngym.sandbox.base import backend

QUICK = ("read a file of the host", "kill the keeper", "fork bomb", "descriptors of the parent", "new namespaces",
         "loopback of the host", "path traversal in read and write", "session: write to what siblings share",
         "session: see the layers from a user namespace", "session: garbage on its control channel")  # fmt: skip


def test_there_are_enough_attacks_and_each_has_its_own_name():
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 40


def test_bubblewrap_keeps_the_contract_and_refuses_a_few_attacks(bubblewrap, monkeypatch):
    monkeypatch.setattr(selfcheck, "ATTACKS", [a for a in ATTACKS if a.name in QUICK])
    report = asyncio.run(selfcheck.check(bubblewrap))
    assert [f for f in (*report.conformance, *report.attacks) if not f.ok] == []
    assert len(report.attacks) == len(QUICK)
    assert report.ok
    assert json.loads(json.dumps(report.to_dict()))["succeeded"] == 0


@pytest.mark.slow
def test_bubblewrap_refuses_every_attack(bubblewrap):
    report = asyncio.run(selfcheck.check(bubblewrap))
    assert [f for f in (*report.conformance, *report.attacks) if not f.ok] == []


def test_an_attack_that_ends_without_a_word_proves_nothing(bubblewrap, monkeypatch):
    silent = [
        Attack(name="broken", code="no_such_name"),
        Attack(name="killed", code="import os; os.kill(os.getpid(), 9)"),
    ]
    monkeypatch.setattr(selfcheck, "ATTACKS", silent)
    monkeypatch.setattr(selfcheck, "CONFORMANCE", {})
    report = asyncio.run(selfcheck.check(bubblewrap))
    assert [each.ok for each in report.attacks] == [False, True]
    assert "NameError" in report.attacks[0].words


def test_a_backend_that_isolates_nothing_fails(monkeypatch):
    chosen = ("read a file of the host", "write a file of the host", "loopback of the host", "exotic sockets")
    monkeypatch.setattr(selfcheck, "ATTACKS", [a for a in ATTACKS if a.name in chosen])
    monkeypatch.setattr(selfcheck, "CONFORMANCE", {"sessions": selfcheck.CONFORMANCE["sessions"]})
    seen = []
    report = asyncio.run(selfcheck.check(backend("unsafe-process"), progress=seen.append))
    assert not report.ok
    assert report.succeeded == len(chosen)
    assert [f.name for f in seen] == ["sessions", *(a.name for a in ATTACKS if a.name in chosen)]
