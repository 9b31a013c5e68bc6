"""A container engine for a benchmark: the one that runs, or one that is started for it and stopped afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turngym.sandbox import image
from turngym.sandbox.docker import Docker

_START_WITHIN_S = 60.0


@contextmanager
def running_engine() -> Iterator[str | None]:
    """Yields None where there is an engine with turngym's image now, else why not."""
    reason = Docker.unavailable()
    if reason is None:
        image.ensure_default()
        yield None
    elif shutil.which("dockerd") is None or os.geteuid() != 0:
        yield reason
    else:
        with _own_dockerd():
            image.ensure_default()
            yield None


@contextmanager
def _own_dockerd() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="engine") as folder, Path(folder, "log").open("w") as log:
        host = f"unix://{folder}/docker.sock"
        words = [
            "dockerd",
            "--data-root",
            f"{folder}/data",
            "--exec-root",
            f"{folder}/exec",
            "--pidfile",
            f"{folder}/pid",
        ]
        words += ["--bridge", "none", "--iptables=false"]  # sandboxes have no network
        served = subprocess.Popen([*words, "-H", host], stdout=log, stderr=log)
        before = os.environ.get("DOCKER_HOST")
        os.environ["DOCKER_HOST"] = host
        try:
            deadline = time.monotonic() + _START_WITHIN_S
            while Docker.unavailable() is not None and time.monotonic() < deadline:
                time.sleep(0.2)
            yield
        finally:
            served.terminate()
            served.wait()
            if before is None:
                del os.environ["DOCKER_HOST"]
            else:
                os.environ["DOCKER_HOST"] = before
