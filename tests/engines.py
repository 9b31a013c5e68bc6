"""What tests in sandboxes share: a backend or an engine that runs, and the image that containers are made of by default."""

from __future__ import annotations

import functools
import os

from missing import skip_or_fail
from turngym.errors import MissingDependency
from turngym.sandbox import image
from turngym.sandbox.base import backend
from turngym.sandbox.docker import Docker


def require_sandbox() -> str:
    """Name of the best sandbox backend that runs here; where none does, skip, or fail where CI is set."""
    try:
        return backend("best").name
    except MissingDependency as error:
        skip_or_fail(str(error))


def require_engine() -> None:
    """Skip where no engine answers; where CI is set, fail. Sees to it that the default image is there."""
    reason = Docker.unavailable()
    if reason is not None:
        skip_or_fail(f"docker: {reason}")
    _ensure_image(os.environ.get("DOCKER_HOST", ""))


@functools.cache
def _ensure_image(_host: str) -> None:
    image.ensure_default()
