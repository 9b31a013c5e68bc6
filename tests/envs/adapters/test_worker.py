"""Workers: no episode is kept in them, no death of theirs is a reward, and only spent CPU is the policy's doing."""

from __future__ import annotations

import datetime
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from turngym.envs.adapters.inside import canonical, frames
from turngym.envs.adapters.worker import Overrun, Worker, WorkerSlot
from turngym.envs.adapters.worker_venv import Pins, interpreter
from turngym.errors import EnvFault, MissingDependency

SIDE = """
import os, signal, sys, time
from inside import canonical
from inside.limits import in_a_copy

seen = []

def work(what):
    match what:
        case "loop":
            while True:
                pass
        case "sum":
            sum(range(10**12))
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise LookupError("in the copy")
    seen.append(what)
    return seen

class Package:
    def tasks(self):
        return ["count"]

    def start(self, task):
        return {"said": []}, {"messages": []}

    def act(self, episode, say):
        print("this goes nowhere near the protocol")
        match say:
            case "die":
                print("my last words", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            case "sleep":
                time.sleep(60)
            case "loop":
                while True:
                    pass
            case "stubborn":
                try:
                    while True:
                        pass
                except Exception:
                    return {"caught": True}
            case "sum":
                sum(range(10**12))  # no exception reaches into this
            case "allocate":
                bytearray(1 << 33)
            case "nest":
                for _ in range(100_000):
                    episode["said"] = [episode["said"]]
                return {}
        if say.startswith("copy "):
            return {"copied": in_a_copy(lambda: work(say[5:])), "seen": list(seen)}
        episode["said"].append(say)
        return {"said": list(episode["said"])}

    def gold(self, episode):
        return {"say": "more"}

    def key(self, episode):
        return canonical.digest(episode)
"""


@pytest.fixture
def side(tmp_path: Path) -> Path:
    (tmp_path / "counting_side.py").write_text(SIDE)
    return tmp_path


@pytest.fixture
def worker(side: Path) -> Iterator[Worker]:
    made = Worker(Path(sys.executable), "counting_side", {"PYTHONPATH": str(side)}, memory_mib=4096)
    yield made
    made.close()


def ask(worker: Worker, op: str, body: bytes = b"", **more: Any) -> tuple[Any, dict[str, Any], bytes]:
    return worker.ask(op, body, **{"cpu_s": 5.0, "deadline_s": 60.0, **more})


def test_a_state_is_a_value_that_can_be_continued_twice(worker: Worker) -> None:
    _, header, fresh = ask(worker, "start", task="count")
    once, one, after = ask(worker, "act", fresh, say="a")
    again, two, _ = ask(worker, "act", fresh, say="a")
    assert once == again == {"said": ["a"]}
    assert header["key"] != one["key"] == two["key"]
    assert ask(worker, "act", after, say="b")[0] == {"said": ["a", "b"]}
    assert ask(worker, "key", after)[0] == one["key"]


def test_a_worker_that_dies_is_a_fault_with_its_last_words(worker: Worker) -> None:
    *_, fresh = ask(worker, "start", task="count")
    with pytest.raises(
        EnvFault, match=r"counting_side worker died at act \(exit code -9\): [^$]*my last words"
    ):
        ask(worker, "act", fresh, say="die")
    assert not worker.alive


def test_a_worker_that_does_not_answer_is_a_fault_and_is_stopped(worker: Worker) -> None:
    *_, fresh = ask(worker, "start", task="count")
    started = time.monotonic()
    with pytest.raises(EnvFault, match="did not answer act in time"):
        ask(worker, "act", fresh, say="sleep", deadline_s=0.5)
    assert time.monotonic() - started < 20
    assert not worker.alive


@pytest.mark.parametrize("what", ["loop", "sum"])
def test_spent_cpu_has_a_name_of_its_own_even_where_no_exception_reaches(worker: Worker, what: str) -> None:
    *_, fresh = ask(worker, "start", task="count")
    with pytest.raises(Overrun, match="counting_side: act used up"):
        ask(worker, "act", fresh, say=what, cpu_s=1.0)


def test_code_that_catches_exceptions_hears_of_the_limit_and_may_answer(worker: Worker) -> None:
    *_, fresh = ask(worker, "start", task="count")
    assert ask(worker, "act", fresh, say="stubborn", cpu_s=1.0)[0] == {"caught": True}
    assert ask(worker, "act", fresh, say="fine", cpu_s=1.0)[0] == {"said": ["fine"]}


def test_a_copy_of_the_worker_takes_its_changes_along(worker: Worker) -> None:
    *_, fresh = ask(worker, "start", task="count")
    for _ in range(2):
        assert ask(worker, "act", fresh, say="copy change")[0] == {"copied": ["change"], "seen": []}


@pytest.mark.parametrize("what", ["loop", "sum"])
def test_spent_cpu_of_a_copy_has_the_same_name_and_the_worker_lives_on(worker: Worker, what: str) -> None:
    *_, fresh = ask(worker, "start", task="count")
    with pytest.raises(Overrun):
        ask(worker, "act", fresh, say=f"copy {what}", cpu_s=1.0)
    assert worker.alive
    assert ask(worker, "act", fresh, say="a")[0] == {"said": ["a"]}


def test_a_copy_that_breaks_is_a_fault_and_the_worker_lives_on(worker: Worker) -> None:
    *_, fresh = ask(worker, "start", task="count")
    with pytest.raises(EnvFault, match="a copy of the worker died"):
        ask(worker, "act", fresh, say="copy die")
    with pytest.raises(EnvFault, match="LookupError: in the copy"):
        ask(worker, "act", fresh, say="copy raise")
    assert worker.alive


def test_memory_and_stack_are_bounded_and_the_worker_lives_on(worker: Worker) -> None:
    *_, fresh = ask(worker, "start", task="count")
    for what, words in (("allocate", "ran out of memory"), ("nest", "nested too deep")):
        with pytest.raises(Overrun, match=f"counting_side: act {words}"):
            ask(worker, "act", fresh, say=what)
    assert worker.alive


def test_what_the_package_raises_is_a_fault_that_says_it(worker: Worker) -> None:
    with pytest.raises(EnvFault, match="counting_side failed at start: TypeError"):
        ask(worker, "start", quest="count")


def test_a_worker_that_can_not_start_is_a_fault(side: Path) -> None:
    (side / "broken_side.py").write_text("import nothing_of_that_name")
    with pytest.raises(EnvFault, match=r"died at start[^$]*nothing_of_that_name"):
        Worker(Path(sys.executable), "broken_side", {"PYTHONPATH": str(side)}, memory_mib=4096)


# ---------------------------------------------------------------------- slots


@pytest.fixture
def slot(side: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerSlot]:
    monkeypatch.setattr("turngym.envs.adapters.worker.interpreter", lambda pins: Path(sys.executable))
    made = WorkerSlot(Pins("counting", ()), "counting_side", variables={"PYTHONPATH": str(side)})
    yield made
    made.close()


def test_after_a_death_the_next_request_finds_another_worker_and_nothing_is_lost(slot: WorkerSlot) -> None:
    *_, fresh = slot.ask("start", task="count")
    *_, after = slot.ask("act", fresh, say="a")
    with pytest.raises(EnvFault):
        slot.ask("act", after, say="die")
    assert slot.ask("act", after, say="b")[0] == {"said": ["a", "b"]}


def test_threads_share_a_worker_and_get_their_own_answers(slot: WorkerSlot) -> None:
    *_, fresh = slot.ask("start", task="count")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: slot.ask("act", fresh, say=str(i))[0], range(100)))
    assert answers == [{"said": [str(i)]} for i in range(100)]


def test_a_worker_goes_when_its_owner_is_killed(side: Path) -> None:
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\nfrom pathlib import Path\nfrom turngym.envs.adapters.worker import Worker\n"
            f"w = Worker(Path(sys.executable), 'counting_side', {{'PYTHONPATH': {str(side)!r}}}, memory_mib=4096)\n"
            "print(w._process.pid, flush=True)\ntime.sleep(60)\n",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        owner.send_signal(signal.SIGKILL)
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text():
            break
        time.sleep(0.1)
    else:
        os.kill(pid, signal.SIGKILL)
        pytest.fail("the worker outlived its owner by ten seconds")


# ---------------------------------------------------------------------- virtual environments


@pytest.mark.slow
def test_an_environment_that_can_not_be_made_says_what_pip_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pins = Pins("nothing", (str(tmp_path / "no_such_file.whl"),))
    with pytest.raises(
        MissingDependency, match=r"no virtual environment for nothing[^$]*To try by hand: .*pip"
    ):
        interpreter(pins)
    assert not (pins.folder / "ready").exists()


def test_an_environment_is_made_once_whoever_asks_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[str] = []

    def run(pins: Pins, command: list[str]) -> None:
        made.append(command[2])
        time.sleep(0.05)
        pins.folder.mkdir(exist_ok=True)

    monkeypatch.setattr("turngym.envs.adapters.worker_venv._run", run)
    askers = [threading.Thread(target=interpreter, args=[Pins("some", ("a==1",))]) for _ in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert made == ["venv", "pip"]


def test_other_pins_are_another_folder() -> None:
    assert Pins("a", ("b==1",)).folder != Pins("a", ("b==2",)).folder
    assert Pins("a", ("b==1",)).folder == Pins("a", ("b==1",)).folder


# ---------------------------------------------------------------------- frames and digests


def test_frames_arrive_whole_and_the_end_is_seen() -> None:
    one, two = socket.socketpair()
    with two:
        with one:
            body = bytes(range(256)) * 1000
            sender = threading.Thread(target=frames.send, args=[one, {"op": "é\ud800"}, body])
            sender.start()
            assert frames.receive(two) == ({"op": "é\ud800"}, body)
            sender.join()
        assert frames.receive(two) is None


def test_frames_that_are_none_are_refused() -> None:
    one, two = socket.socketpair()
    with one, two:
        one.sendall(frames.PREFIX.pack(1 << 31, 0))
        with pytest.raises(frames.BadFrame, match="the limit"):
            frames.receive(two)
        one.sendall(frames.PREFIX.pack(2, 0) + b"[]")
        with pytest.raises(frames.BadFrame, match="list, not an object"):
            frames.receive(two)
        with pytest.raises(TimeoutError):
            frames.receive(two, until=time.monotonic() + 0.01)


class Folder:
    def __init__(self, parent: Folder | None, name: str) -> None:
        self.parent, self.name, self.children = parent, name, [Folder(self, "a")] if parent is None else []
        self.touched = time.time_ns()


def test_digests_see_values_and_not_identities() -> None:
    skip = frozenset({"touched"})
    one, two = Folder(None, "root"), Folder(None, "root")
    assert canonical.digest(one, skip=skip) == canonical.digest(two, skip=skip)
    two.children[0].name = "b"
    assert canonical.digest(one, skip=skip) != canonical.digest(two, skip=skip)
    assert canonical.digest({"a": 1, "b": {"x", "y"}}) == canonical.digest({"b": {"y", "x"}, "a": 1})


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, True),
        (1, 1.0),
        ("1", 1),
        ([1], (1,)),
        (None, "None"),
        ({1: 2}, {"1": 2}),
        (random.Random(1), random.Random(2)),
        (datetime.date(2024, 1, 2), datetime.date(2024, 1, 3)),
        ([10**5000], [10**5000 + 1]),
        ([], {}),
    ],
)
def test_digests_tell_values_apart(left: Any, right: Any) -> None:
    assert canonical.digest(left) != canonical.digest(right)
    assert canonical.digest([left, left]) == canonical.digest([left, left])


def test_what_can_not_be_seen_has_no_digest() -> None:
    with pytest.raises(TypeError, match="no canonical digest for generator"):
        canonical.digest({"a": (i for i in [])})
