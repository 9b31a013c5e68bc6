"""Words after an error that tell a policy the name it may have meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean …?`, or nothing where nothing is near.

    >>> nearest("mkdirs", ["ls", "mkdir"])
    " Did you mean 'mkdir'?"
    """
    near = difflib.get_close_matches(name[:200], list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def nearest_argument(said: str, known: Iterable[str]) -> str:
    """The same for what Python says of an argument that a function does not take.

    >>> nearest_argument("cd() got an unexpected keyword argument 'folders'", ["folder"])
    ". Did you mean 'folder'?"
    """
    unexpected = _UNEXPECTED.search(said)
    hint = nearest(unexpected[1], known) if unexpected else ""
    return hint and f".{hint}"
