"""What runs inside a grading sandbox: a program of its own, with the standard library alone.

`candidate` calls a submitted function on inputs and writes down what it gives. It shares a process with the submission,
so nothing that it says is believed: it is told no expected result, and its words are compared elsewhere. `judge` runs
a check that is written as code (HumanEval's) against answers that were collected before, in a sandbox that the
submission never enters.

Values travel as JSON that keeps apart what Python does: `1`, `1.0` and `true`; a list is `{"list": […]}`, and so on.
"""

from __future__ import annotations

import copy
import json
import os
import random
import sys
from typing import Any

_SEQUENCES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_DEPTH = 40


def encode(value: Any, depth: int = 0) -> Any:
    """`value` as JSON. TypeError for all but plain values of exactly the built-in types."""
    kind = type(value)
    if depth > _DEPTH:
        raise TypeError("nested too deeply")
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is dict:
        return {"dict": [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in value.items()]}
    if _SEQUENCES.get(kind.__name__) is kind:
        return {kind.__name__: [encode(item, depth + 1) for item in value]}
    raise TypeError(f"a result of type {kind.__name__}")


def decode(data: Any) -> Any:
    """The value that `encode` wrote."""
    if not isinstance(data, dict):
        return data
    ((kind, items),) = data.items()
    if kind == "dict":
        return {decode(key): decode(value) for key, value in items}
    return _SEQUENCES[kind](decode(item) for item in items)


def candidate(request: dict[str, Any]) -> None:
    """Answer every case with a line: `{"value": …}` or `{"error": …}`."""
    words = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)

    def say(answer: dict[str, Any]) -> None:
        words.write(json.dumps(answer) + "\n")
        words.flush()

    scope: dict[str, Any] = {"__name__": "solution"}
    try:
        exec(compile(request["source"], "<solution>", "exec"), scope)
        function = scope[request["entry"]]
    except BaseException as error:  # noqa: BLE001 - whatever a submission raises is its answer
        say({"error": _words(error)})
        return
    for case in request["cases"]:
        try:
            say({"value": encode(function(*decode(case)))})
        except BaseException as error:  # noqa: BLE001 - likewise
            say({"error": _words(error)})


def judge(request: dict[str, Any]) -> None:
    """Run the check against known answers: `{"passed": …}`, or `{"need": […]}`, argument tuples to ask for first."""
    scope: dict[str, Any] = {"__name__": "check"}
    exec(request["reference"], scope)  # some checks call the problem's own functions by name
    reference = scope[request["entry"]]
    known = {json.dumps(arguments): answer for arguments, answer in request["answers"]}
    need: list[Any] = []

    def stand_in(*arguments: Any) -> Any:
        asked = encode(arguments)
        answer = known.get(json.dumps(asked))
        if answer is None:
            need.append(asked)
            return reference(*copy.deepcopy(arguments))
        if "error" in answer:
            raise AssertionError(answer["error"])
        return decode(answer["value"])

    random.seed(0)
    try:
        exec(request["check"], scope)
        scope["check"](stand_in)
        passed = True
    except Exception:  # noqa: BLE001 - an answer of the wrong type breaks a check in many ways
        passed = False
    sys.stdout.write(json.dumps({"need": need} if need else {"passed": passed}))


def _words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except BaseException:  # noqa: BLE001 - an exception that can't be printed
        return type(error).__name__


if __name__ == "__main__":
    {"candidate": candidate, "judge": judge}[sys.argv[1]](json.loads(sys.stdin.buffer.read()))
    sys.stdout.flush()
    os._exit(0)  # nothing that a submission left behind (threads, exit handlers) has a say
