"""Checkpoints appear whole or not at all: killed at any moment, on a full disk, cut or changed afterwards."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import require
from turngym.errors import CheckpointError, ConfigError
from turngym.trainers.checkpoint import fault_of, newest_checkpoint, save_checkpoint


def writer(update: int, *, size: int = 1000) -> Callable[[Path], None]:
    """Writes three files, one in a folder, that all hold the number of the update."""

    def write(folder: Path) -> None:
        (folder / "policy").mkdir()
        for name in ("policy/weights", "state", "run"):
            (folder / name).write_bytes(update.to_bytes(4) * (size // 4))

    return write


def saved(root: Path, *updates: int, keep: int = 10) -> None:
    for update in updates:
        save_checkpoint(root, update, writer(update), keep=keep)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


# ---------------------------------------------------------------------- whole


def test_a_checkpoint_holds_what_was_written_and_is_whole(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "deep" / "checkpoints", 20, writer(20), keep=2)
    assert folder.name == "update-000020"
    assert fault_of(folder) is None
    assert newest_checkpoint(folder.parent) == folder
    assert sorted(json.loads((folder / "manifest.json").read_text())) == ["policy/weights", "run", "state"]
    assert (folder / "policy" / "weights").read_bytes() == (20).to_bytes(4) * 250


def test_no_folder_and_an_empty_folder_hold_no_checkpoint(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "nowhere") is None
    assert newest_checkpoint(tmp_path) is None


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    saved(tmp_path, 10, 20, 30, 40, keep=keep)
    assert names(tmp_path) == [f"update-0000{n}0" for n in (1, 2, 3, 4)][-keep:]


def test_updates_are_ordered_as_numbers_and_strangers_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "update-notes").mkdir()
    (tmp_path / "readme.txt").write_text("mine")
    saved(tmp_path, 999_999, 1_000_000, 1_000_001, keep=2)
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.name == "update-1000001"
    assert names(tmp_path) == ["readme.txt", "update-1000000", "update-1000001", "update-notes"]


def test_saving_an_update_again_replaces_it(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    save_checkpoint(tmp_path, 10, writer(11), keep=1)
    assert (tmp_path / "update-000010" / "state").read_bytes() == (11).to_bytes(4) * 250


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        saved(tmp_path, 1, keep=0)


# ---------------------------------------------------------------------- broken


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def change(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("name", ["policy/weights", "state", "run", "manifest.json"])
@pytest.mark.parametrize("harm", [cut, change, empty, Path.unlink])
def test_a_broken_file_is_noticed_and_the_checkpoint_before_is_used(
    tmp_path: Path, name: str, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 10, 20)
    broken = tmp_path / "update-000020"
    harm(broken / name)
    assert fault_of(broken) is not None
    assert newest_checkpoint(tmp_path) == tmp_path / "update-000010"
    assert "update-000020 is not whole" in caplog.text


@pytest.mark.parametrize("content", ["[]", "null", "3", '{"state": 3}', '{"state": [1]}', "{"])
def test_a_manifest_of_another_kind_is_no_manifest(tmp_path: Path, content: str) -> None:
    saved(tmp_path, 10)
    (tmp_path / "update-000010" / "manifest.json").write_text(content)
    assert fault_of(tmp_path / "update-000010") is not None
    assert newest_checkpoint(tmp_path) is None


def test_a_broken_newer_one_does_not_push_out_what_was_just_written(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    cut(tmp_path / "update-000020" / "state")
    saved(tmp_path, 15, keep=1)  # the run went on from update 10
    assert newest_checkpoint(tmp_path) == tmp_path / "update-000015"
    saved(tmp_path, 20, keep=1)
    assert newest_checkpoint(tmp_path) == tmp_path / "update-000020"
    assert names(tmp_path) == ["update-000020"]


# ---------------------------------------------------------------------- full disk


@contextmanager
def full_disk(free: int) -> Iterator[None]:
    """Every file that grows beyond `free` bytes fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_bytes(folder: Path) -> None:
    writer(20, size=200_000)(folder)


def write_torch(folder: Path) -> None:
    torch = require("torch", "turngym[train]")
    torch.save(torch.zeros(50_000), folder / "state.pt")


def write_safetensors(folder: Path) -> None:
    torch, safetensors = require("torch", "turngym[train]"), require("safetensors.torch", "turngym[train]")
    safetensors.save_file({"w": torch.zeros(50_000)}, folder / "model.safetensors")


@pytest.mark.parametrize("write", [write_bytes, write_torch, write_safetensors])
def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, write: Callable[[Path], None]) -> None:
    saved(tmp_path, 10, keep=1)
    with full_disk(100_000), pytest.raises(CheckpointError, match="earlier checkpoints still load"):
        save_checkpoint(tmp_path, 20, write, keep=1)
    assert names(tmp_path) == ["update-000010"]
    assert newest_checkpoint(tmp_path) == tmp_path / "update-000010"
    save_checkpoint(tmp_path, 20, write, keep=1)  # room again
    assert names(tmp_path) == ["update-000020"]


def test_a_disk_that_is_full_at_the_manifest_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    with full_disk(100), pytest.raises(CheckpointError) as caught:
        save_checkpoint(tmp_path, 20, writer(20, size=80), keep=1)
    assert isinstance(caught.value.__cause__, OSError)
    assert names(tmp_path) == ["update-000010"]


def test_a_place_that_can_not_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"can't write .*update-000001"):
        save_checkpoint(tmp_path / "file", 1, writer(1), keep=1)


def test_an_interrupted_save_leaves_nothing_that_a_later_one_does_not_remove(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        writer(20)(folder)
        raise KeyboardInterrupt

    saved(tmp_path, 10)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 20, interrupted, keep=1)
    assert newest_checkpoint(tmp_path) == tmp_path / "update-000010"
    saved(tmp_path, 30, keep=2)
    assert names(tmp_path) == ["update-000010", "update-000030"]


# ---------------------------------------------------------------------- kill -9

SAVES_FOREVER = """
import sys
from pathlib import Path
from turngym.trainers.checkpoint import newest_checkpoint, save_checkpoint

root = Path(sys.argv[1])
newest = newest_checkpoint(root)
update = int(newest.name.removeprefix("update-")) if newest else 0
while True:
    update += 1

    def write(folder):
        (folder / "policy").mkdir()
        for i in range(8):
            (folder / "policy" / f"part-{i}").write_bytes(update.to_bytes(4) * 50_000)

    save_checkpoint(root, update, write, keep=1)
    print(update, flush=True)
"""


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_while_it_saves_loses_at_most_that_save(tmp_path: Path, kills: int) -> None:
    rng = random.Random(0)
    unfinished = 0
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVES_FOREVER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        reported = [int(process.stdout.readline())]
        time.sleep(rng.uniform(0, 0.12))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        reported += [int(line) for line in process.stdout.read().split()]
        process.stdout.close()
        unfinished += any(name.startswith(".partial") for name in names(tmp_path))
        newest = newest_checkpoint(tmp_path)
        assert newest is not None
        update = int(newest.name.removeprefix("update-"))
        assert update in (
            reported[-1],
            reported[-1] + 1,
        )  # the kill may come between the rename and the report
        for part in (newest / "policy").iterdir():
            assert part.read_bytes() == update.to_bytes(4) * 50_000
    assert unfinished >= kills // 4  # kills really came in the middle
