"""The making of the default policy, in miniature: what is imitated when, and the same weights every time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from turngym.agents.chat import ByteRenderer
from turngym.agents.policies import sprout
from turngym.agents.policies.sprout import Course, Recipe, train_model, train_tokenizer
from turngym.agents.template import TemplateRenderer
from turngym.errors import ConfigError

COURSE = Course(env="turngym/Corridor-v0", count=24, epsilon=0.4, imitate_errors=True)


@pytest.fixture
def one_course(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sprout, "COURSES", (COURSE,))


@pytest.mark.usefixtures("one_course")
def test_errors_are_imitated_in_the_last_epoch_alone() -> None:
    demos = sprout.demonstrations(ByteRenderer(), seed=0)
    actions = sum(node.is_action for tree, _ in demos for node in tree)
    errors = sum(node.is_action and node.logprobs[0] < np.log(0.5) for tree, _ in demos for node in tree)
    assert 0.3 < errors / actions < 0.5  # the dice of the course
    rows = [sprout._row(tree, course) for tree, course in demos]
    sampled = sum(tree.sampled_tokens for tree, _ in demos)
    assert sum(int((row.last_labels >= 0).sum()) for row in rows) == sampled
    assert sum(int((row.labels >= 0).sum()) for row in rows) == sum(
        node.ids.size
        for tree, _ in demos
        for node in tree
        if node.is_action and node.logprobs[0] > np.log(0.5)
    )


@pytest.mark.parametrize("epsilon", [-0.1, 0.5, 0.7])
def test_a_course_whose_expert_could_not_be_told_from_the_dice_is_refused(epsilon: float) -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        Course(env="turngym/Corridor-v0", count=1, epsilon=epsilon)


@pytest.mark.usefixtures("one_course")
def test_the_same_recipe_makes_the_same_weights() -> None:
    recipe = Recipe(width=16, layers=1, heads=2, feed_forward=16, epochs=2, batch=8, vocabulary=300)
    demos = sprout.demonstrations(ByteRenderer(), seed=0)
    tokenizer = train_tokenizer(sprout._texts(demos), recipe.vocabulary)
    renderer = TemplateRenderer(tokenizer)
    rows = [sprout._row(*demo) for demo in sprout.demonstrations(renderer, seed=0)]
    one, two = (train_model(rows, tokenizer, recipe).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
