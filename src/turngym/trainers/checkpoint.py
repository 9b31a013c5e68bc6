"""Checkpoints that a killed run can trust.

A checkpoint is a folder that appears whole or not at all: it is written beside its place, flushed to the disk, and
renamed. `manifest.json` is written last and lists every file with its size and hash, so a folder that was cut short by
a full disk is recognised and the one before it is used.

    checkpoints/update-000020/
        policy/          the model or adapter and its tokenizer, as transformers and PEFT load them
        state.pt         optimiser, learner counters
        critic.pt        the critic's weights and optimiser, where there is one
        run.json         update, prompt ledger, counters, configuration
        manifest.json
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import orjson

from turngym.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)

_MANIFEST = "manifest.json"


def save_checkpoint(root: Path, update: int, write: Callable[[Path], None], *, keep: int) -> Path:
    """Make `root/update-NNNNNN` with what `write(folder)` puts there; keep the newest `keep` checkpoints.

    Raises:
        CheckpointError: where it could not be written (a full disk); earlier checkpoints are untouched.
    """
    if keep < 1:
        raise ConfigError(f"at least one checkpoint has to be kept, got keep={keep}")
    final, partial = root / f"update-{update:06d}", root / f".partial-{update:06d}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for left_over in root.glob(".partial-*"):  # by a run that was killed
            shutil.rmtree(left_over)
        partial.mkdir()
        write(partial)
        manifest = {p.relative_to(partial).as_posix(): _fingerprint(p) for p in _files(partial)}
        (partial / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for path in [partial, *partial.rglob("*")]:
            _flush(path)
        if final.exists():
            shutil.rmtree(final)
        os.replace(partial, final)
        _flush(root)
    except Exception as error:  # every library has a class of its own for a full disk
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"can't write {final}: {type(error).__name__}: {error}; earlier checkpoints still load"
        ) from error
    # Newer ones are broken, or this run would have gone on from them; they don't push out what was just written.
    for old in [folder for folder in _by_update(root) if _update_of(folder) <= update][:-keep]:
        shutil.rmtree(old)
    return final


def newest_checkpoint(root: Path) -> Path | None:
    """The newest checkpoint that is whole, or None. Broken ones are named in the log and passed over."""
    for folder in reversed(_by_update(root)):
        fault = fault_of(folder)
        if fault is None:
            return folder
        logger.warning("checkpoint %s is not whole (%s): trying the one before it", folder, fault)
    return None


def fault_of(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        manifest: Any = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"no readable manifest: {error}"
    if not isinstance(manifest, dict):
        return "its manifest is not a list of files"
    for name, fingerprint in manifest.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if _fingerprint(path) != fingerprint:
            return f"{name} has changed"
    return None


def _by_update(root: Path) -> list[Path]:
    return sorted((f for f in root.glob("update-*") if f.name[7:].isdigit()), key=_update_of)


def _update_of(folder: Path) -> int:
    return int(folder.name.removeprefix("update-"))


def must_match(
    found: Mapping[str, Any],
    wanted: Mapping[str, Any],
    *,
    where: str,
    what: str,
    may_change: Collection[str] = (),
) -> None:
    """Refuse to go on with what was made by another configuration.

    Args:
        found: nested plain data, as it was written.
        wanted: that of this run, as it would be written.
        where: what is gone on with, for the message.
        what: what this is, in the singular ("evaluation").
        may_change: fields that may differ, as `section.field`.

    Raises:
        CheckpointError: names the first field that differs.
    """
    mine, theirs = _flat(orjson.loads(orjson.dumps(wanted))), _flat(found)
    for name in [*mine, *theirs]:
        if mine.get(name) != theirs.get(name) and name not in may_change:
            raise CheckpointError(
                f"{where} was made with {name} = {theirs.get(name)!r}, this {what} has {mine.get(name)!r}: "
                "use the same to go on with it, or choose another folder"
            )


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in data.items():
        out |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return out


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def _fingerprint(path: Path) -> list[int | str]:
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "blake2b").hexdigest()[:32]]


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
