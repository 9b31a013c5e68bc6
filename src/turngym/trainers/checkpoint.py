"""Checkpoints that a killed run can trust.

A checkpoint is a folder that appears whole or not at all: it is written beside its place, flushed to the disk, and
renamed. `manifest.json` is written last and lists every file with its size and hash, so a folder that was cut short by
a full disk is recognised and the one before it is used.

    checkpoints/update-000020/
        policy/          the model or adapter and its tokenizer, as transformers and PEFT load them
        state.pt         optimiser, schedule position, learner counters
        run.json         update, prompt ledger, counters, configuration
        manifest.json
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turngym.errors import CheckpointError

logger = logging.getLogger(__name__)

_MANIFEST = "manifest.json"


def save_checkpoint(root: Path, update: int, write: Callable[[Path], None], *, keep: int) -> Path:
    """Make `root/update-NNNNNN` with what `write(folder)` puts there; keep the newest `keep` checkpoints.

    Raises:
        CheckpointError: where it could not be written (a full disk); earlier checkpoints are untouched.
    """
    final = root / f"update-{update:06d}"
    partial = root / f".partial-{update:06d}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        write(partial)
        manifest = {str(p.relative_to(partial)): _fingerprint(p) for p in _files(partial)}
        (partial / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for path in [*_files(partial), partial]:
            _flush(path)
        if final.exists():
            shutil.rmtree(final)
        os.replace(partial, final)
        _flush(root)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"can't write {final}: {error}; earlier checkpoints still load") from error
    for old in sorted(root.glob("update-*"))[:-keep]:
        shutil.rmtree(old)
    return final


def newest_checkpoint(root: Path) -> Path | None:
    """The newest checkpoint that is whole, or None. Broken ones are named in the log and passed over."""
    for folder in sorted(root.glob("update-*"), reverse=True):
        fault = fault_of(folder)
        if fault is None:
            return folder
        logger.warning("checkpoint %s is not whole (%s): trying the one before it", folder, fault)
    return None


def fault_of(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        manifest: dict[str, Any] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"no readable manifest: {error}"
    for name, fingerprint in manifest.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if _fingerprint(path) != fingerprint:
            return f"{name} has changed"
    return None


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
