"""Other people's code runs with generators of its own, without warnings, and leaves the process as it was."""

from __future__ import annotations

import logging
import random
import types
import warnings

import numpy as np
import pytest

from turngym.envs.isolation import GlobalRandom, isolated, silence


def draw() -> tuple[float, float]:
    return random.random(), float(np.random.random())


def test_an_episode_goes_on_where_it_was_and_the_process_does_not_notice() -> None:
    random.seed(5)
    np.random.seed(5)
    expected = [draw() for _ in range(3)]
    random.seed(1)
    np.random.seed(1)
    outside = [draw() for _ in range(3)]
    random.seed(1)
    np.random.seed(1)
    episode, inside, between = GlobalRandom.seeded(5), [], []
    for _ in range(3):
        with isolated(episode):
            inside.append(draw())
        between.append(draw())
    assert inside == expected
    assert between == outside


def test_it_holds_where_the_code_raises() -> None:
    before, episode = GlobalRandom.current(), GlobalRandom.seeded(5)
    with pytest.raises(ZeroDivisionError), isolated(episode):
        assert draw()[0] / 0
    assert random.getstate() == before.python
    assert episode.python != GlobalRandom.seeded(5).python


def test_without_an_episode_the_generators_are_put_back() -> None:
    before = random.getstate()
    with isolated():
        random.seed(3)
    assert random.getstate() == before


def test_warnings_stay_inside_and_filters_come_back() -> None:
    filters = list(warnings.filters)
    with isolated():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert list(warnings.filters) == filters


def test_what_a_module_prints_is_logged(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    module = types.ModuleType("noisy")
    exec("def speak(): print('hello', 3, end='')", vars(module))
    silence(module)
    with caplog.at_level(logging.DEBUG):
        module.speak()
    assert capsys.readouterr().out == ""
    assert caplog.messages == ["noisy: hello 3"]
