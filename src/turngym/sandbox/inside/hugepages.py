"""Huge pages for Python sessions: the page tables that a fork has to copy are 512 times smaller with them.

The C library asks for them (`glibc.malloc.hugetlb=1`) where two files below `/sys` say that there are any, and reads
those when a program starts. Sandboxes have no `/sys`, so a session that starts is shown copies of the two, and
nothing any more when it is up.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as in `typing`, which is not loaded for it
if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = "sys"
"""What the session sees as `/sys` while it starts, from the supervisor's working directory."""
ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_FOLDER = "kernel/mm/transparent_hugepage"
_FILES = ("enabled", "hpage_pmd_size")


def read() -> dict[str, str]:
    """The two files of this machine by name; {} where the kernel has no huge pages."""
    files = {}
    for name in _FILES:
        try:
            with open(f"/sys/{_FOLDER}/{name}", encoding="ascii") as file:
                files[name] = file.read()
        except OSError:
            return {}
    return files


class Shown:
    """Keeps copies of `files` below `ROOT` for as long as the context lasts; None where nobody looks there."""

    def __init__(self, files: Mapping[str, str] | None) -> None:
        self._files = files
        self._folder = f"{ROOT}/{_FOLDER}"

    def __enter__(self) -> None:
        if self._files is None:
            return
        os.makedirs(self._folder, exist_ok=True)
        for name, text in self._files.items():
            with open(f"{self._folder}/{name}", "w", encoding="ascii") as file:
                file.write(text)

    def __exit__(self, *_: object) -> None:
        if self._files is None:
            return
        for name in os.listdir(self._folder):
            os.unlink(f"{self._folder}/{name}")
        os.removedirs(self._folder)
