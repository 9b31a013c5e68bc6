"""Settings written as name=value."""

from __future__ import annotations

import pytest

from turngym.errors import ConfigError, UnknownName
from turngym.options import call_with, parse_options, parse_value


@pytest.mark.parametrize("text", ["1\nother = 2", "a b", "", "=", "'", "08", "{", "nope\x00"])
def test_what_is_not_one_toml_value_is_taken_as_written(text: str) -> None:
    assert parse_value(text) == text


def test_values_are_toml_and_may_hold_an_equals_sign() -> None:
    parsed = parse_options(
        ["rooms=5", "name = a=b", "share=0.5", "flag=false", "sizes=[1, 2]"], where="--option"
    )
    assert parsed == {"rooms": 5, "name": "a=b", "share": 0.5, "flag": False, "sizes": [1, 2]}


@pytest.mark.parametrize(
    ("settings", "says"),
    [(["rooms"], "write name=value"), (["=3"], "write name=value"), (["a=1", "a=2"], "'a' stands twice")],
)
def test_malformed_settings_are_refused_where_they_stand(settings: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=f"--option: .*{says}"):
        parse_options(settings, where="--option")


def test_options_are_checked_against_the_signature() -> None:
    def factory(name: str, *, depth: int, width: int = 1) -> tuple[str, int, int]:
        return name, depth, width

    assert call_with(factory, {"depth": 2}, what="thing", given=("x",)) == ("x", 2, 1)
    with pytest.raises(UnknownName, match="Did you mean 'depth'"):
        call_with(factory, {"dpeth": 2}, what="thing", given=("x",))
    with pytest.raises(ConfigError, match="thing needs the option 'depth'"):
        call_with(factory, {}, what="thing", given=("x",))
