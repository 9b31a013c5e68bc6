"""Training recipes that ship with the package: one TOML file each, by name (`turngym train demo`)."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from turngym.errors import unknown_name
from turngym.trainers.config import TrainConfig


def recipe_names() -> list[str]:
    """Names of the recipes, sorted."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in files(__name__).iterdir()
        if entry.name.endswith(".toml")
    )


def load_recipe(name_or_path: str) -> TrainConfig:
    """The recipe of that name, or the TOML file at that path.

    Raises:
        UnknownName: where it is neither; names the nearest recipe.
    """
    if name_or_path.endswith(".toml") or Path(name_or_path).is_file():
        return TrainConfig.load(name_or_path)
    if name_or_path not in recipe_names():
        raise unknown_name(
            "recipe", name_or_path, recipe_names(), hint="A path to a TOML file works as well."
        )
    return TrainConfig.load(Path(str(files(__name__) / f"{name_or_path}.toml")))
