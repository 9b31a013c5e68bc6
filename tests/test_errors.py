"""Errors: the tree in the docstring is the tree in the code, all can be pickled, and names get a suggestion."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest

from turngym import errors
from turngym.errors import EnvFault, Fault, ForkDiverged, TurngymError, UnknownName, unknown_name

ALL = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, TurngymError)]


def made(error: type[TurngymError]) -> TurngymError:
    return ForkDiverged("words", turn=3) if error is ForkDiverged else error("words")


def test_the_drawn_hierarchy_is_the_real_one() -> None:
    """Each line of the drawing: its depth gives the parent, the brackets the standard exception."""
    above: list[str] = []
    drawn: dict[str, tuple[str | None, str | None]] = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│├└─ ]*)(\w+)(?: \((\w+)\))?", line)
        if not match:
            continue
        depth = len(match[1]) // 4
        above[depth:] = [match[2]]
        drawn[match[2]] = (above[depth - 1] if depth else None, match[3])
    assert drawn.keys() == {c.__name__ for c in ALL}
    for error in ALL:
        parent, standard = drawn[error.__name__]
        assert error.__bases__[0].__name__ == (parent or "Exception")
        if standard:
            assert standard in [c.__name__ for c in error.__mro__]


@pytest.mark.parametrize("error", ALL)
def test_each_error_can_be_pickled_copied_and_documented(error: type[TurngymError]) -> None:
    original = made(error)
    for again in (pickle.loads(pickle.dumps(original)), copy.copy(original)):
        assert type(again) is error
        assert str(again) == "words"
        assert vars(again) == vars(original)
    assert error.__doc__


@pytest.mark.parametrize(
    ("name", "standard"),
    [
        ("ConfigError", ValueError), ("UnknownName", LookupError), ("MissingDependency", ImportError),
        ("TemplateError", ValueError), ("TreeError", ValueError), ("CreditError", ValueError),
        ("CheckpointError", RuntimeError), ("HarnessFault", RuntimeError), ("ForkDiverged", RuntimeError),
    ],
)  # fmt: skip
def test_each_error_is_also_the_standard_one(name: str, standard: type[Exception]) -> None:
    with pytest.raises(standard, match="words"):
        raise made(getattr(errors, name))


def test_a_diverged_fork_is_a_fault_and_knows_its_turn() -> None:
    error = ForkDiverged("differs", turn=4)
    assert isinstance(error, EnvFault)
    assert isinstance(error, Fault)
    assert pickle.loads(pickle.dumps(error)).turn == 4


def test_configuration_errors_are_no_faults() -> None:
    """A fault voids a sample and goes on; a wrong option must end the run."""
    faults = {c.__name__ for c in ALL if issubclass(c, Fault)}
    assert faults == {"Fault", "EnvFault", "ForkDiverged", "HarnessFault"}


# ---------------------------------------------------------------------- names


def test_an_unknown_name_suggests_the_nearest() -> None:
    error = unknown_name("environment", "Coridor-v0", ["Ledger-v0", "Corridor-v0"])
    assert isinstance(error, UnknownName)
    assert str(error) == (
        "unknown environment 'Coridor-v0'. Did you mean 'Corridor-v0'? Known: Corridor-v0, Ledger-v0."
    )


def test_nothing_near_is_not_guessed() -> None:
    assert str(unknown_name("loss", "xyz", ["pg", "ppo"])) == "unknown loss 'xyz'. Known: pg, ppo."
    assert str(unknown_name("loss", "xyz", [])) == "unknown loss 'xyz'."


def test_a_hint_ends_the_message() -> None:
    message = str(unknown_name("environment", "tw", ["a"], hint="Install `turngym[textworld]` for it."))
    assert message == "unknown environment 'tw'. Known: a. Install `turngym[textworld]` for it."


def test_long_lists_are_cut() -> None:
    names = [f"name{i:02}" for i in range(30)]
    assert str(unknown_name("x", "?", names)).endswith("name23, ….")
    assert str(unknown_name("x", "?", names[:24])).endswith("name23.")


def test_control_characters_in_a_name_are_quoted() -> None:
    assert "'\\x00\\ud800'" in str(unknown_name("x", "\x00\ud800", []))
