"""Names to things, loaded when first asked for: environments by id, and a small `Registry` for everything else.

An environment is registered by the string `"module:Class"`, with Gymnasium as well, so that
`gym.make("turngym/Corridor-v0")` and `turngym.make(…)` are the same environment. Nothing is imported before it is
made, and Gymnasium itself is not imported for the sake of registering: ids wait until somebody imports it.

Other packages add environments under the entry points `turngym.envs` (`mylab/Maze-v0 = "mylab.maze:Maze"`) and
policies under `turngym.policies`. What they name can't shadow what is registered here.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from turngym.errors import ConfigError, MissingDependency, UnknownName, unknown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turngym.envs.base import TurnEnv

T = TypeVar("T")


class Registry(Generic[T]):
    """Names of one kind of thing. A value may be the thing, or `"module:attribute"`, imported on the first `get`.

    Args:
        kind: what a name stands for, in the singular; used in messages ("credit rule").
        entry_points: group of entry points in which other packages name theirs; read on the first miss.

    >>> rules = Registry[object]("credit rule")
    >>> rules.add("grpo", "turngym.seeding:derive")
    >>> rules.get("gpro")
    Traceback (most recent call last):
        ...
    turngym.errors.UnknownName: unknown credit rule 'gpro'. Did you mean 'grpo'? Known: grpo.
    """

    def __init__(self, kind: str, *, entry_points: str | None = None) -> None:
        self.kind = kind
        self._group = entry_points
        self._things: dict[str, T | str] = {}

    def add(self, name: str, thing: T | str) -> None:
        """Register `thing` under `name`.

        Raises:
            ConfigError: where the name is taken by something else.
        """
        if self._things.setdefault(name, thing) != thing:
            raise ConfigError(f"{self.kind} {name!r} is registered already: as {self._things[name]!r}")

    def get(self, name: str) -> T:
        """The thing called `name`.

        Raises:
            UnknownName: names the nearest that exists.
        """
        if name not in self._things:
            self._discover()
        if name not in self._things:
            raise unknown_name(self.kind, name, self._things)
        thing = self._things[name]
        if isinstance(thing, str):
            thing = self._things[name] = cast(T, load(thing))
        return thing

    def names(self) -> list[str]:
        """Every name, sorted."""
        self._discover()
        return sorted(self._things)

    def _discover(self) -> None:
        for name, reference in entry_points(self._group).items():
            self._things.setdefault(name, reference)


def load(reference: str) -> Any:
    """Import `"module:attribute"`."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def entry_points(group: str | None) -> dict[str, str]:
    """Name → `"module:attribute"` of every entry point in `group`."""
    if group is None:
        return {}
    import importlib.metadata  # noqa: PLC0415 - a third of the time of `import turngym`

    return {e.name: e.value for e in importlib.metadata.entry_points(group=group)}


def import_extra(module: str, *, extra: str) -> ModuleType:
    """Import an optional package.

    Args:
        module: what to import.
        extra: the extra of turngym that installs it.

    Raises:
        MissingDependency: where it is missing or broken; says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependency(f"{error}. To get it: {_install(extra)}") from error


def _install(extra: str) -> str:
    return f"pip install 'turngym[{extra}]'"


# ---------------------------------------------------------------------- environments


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvEntry:
    """One registered environment."""

    id: str
    entry_point: str
    "module:Class"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    "default constructor options"
    description: str | None = None
    "one line; None takes the first line of the class's docstring"
    requires: str | None = None
    "optional module that it imports"
    extra: str | None = None
    "the extra that installs it"

    @property
    def family(self) -> str:
        """The room that it lives in (`text`, `adapters`, …), or the package of somebody else."""
        package, *rooms = self.entry_point.partition(":")[0].split(".")
        return rooms[1] if package == "turngym" else package

    @property
    def missing(self) -> str | None:
        """The command that would install what is missing; None where nothing is."""
        if self.requires is None or importlib.util.find_spec(self.requires) is not None:
            return None
        return _install(self.extra or self.requires)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSummary:
    """What `list_envs` says of an environment."""

    id: str
    family: str
    forking: str
    "exact, replay or none"
    description: str
    available: bool
    install: str | None
    "the command that makes it available, where it is not"


_ENVS: dict[str, EnvEntry] = {}
_ID = re.compile(r"(?:(?P<namespace>[\w:-]+)/)?(?P<name>[\w:.-]+?)(?:-v(?P<version>\d+))?")


def register(
    env_id: str,
    entry_point: str,
    *,
    kwargs: Mapping[str, Any] | None = None,
    description: str | None = None,
    requires: str | None = None,
    extra: str | None = None,
) -> None:
    """Register an environment here and with Gymnasium.

    Args:
        env_id: `namespace/Name-vN`. A change in results is a new version.
        entry_point: `"module:Class"` of a `TurnEnv`.
        kwargs: default constructor options.
        description: one line for lists; the first line of the class's docstring where it is left out.
        requires: optional module that the class imports.
        extra: the extra that installs it.

    Raises:
        ConfigError: for an id without namespace or version, or one that stands for something else already.
    """
    match = _ID.fullmatch(env_id)
    if not match or not match["namespace"] or not match["version"]:
        raise ConfigError(
            f"an environment's id reads namespace/Name-vN, for example mylab/Maze-v0; got {env_id!r}"
        )
    entry = EnvEntry(
        id=env_id,
        entry_point=entry_point,
        kwargs=kwargs or {},
        description=description,
        requires=requires,
        extra=extra,
    )
    known = _ENVS.setdefault(env_id, entry)
    if known != entry:
        raise ConfigError(
            f"{env_id} is registered already, as {known.entry_point}; a change is a new version"
        )
    if "gymnasium" in sys.modules:
        _register_with_gymnasium(entry)
    elif not any(isinstance(finder, _WhenGymnasiumComes) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenGymnasiumComes())


def make(env_id: str, **options: Any) -> TurnEnv:
    """Make an environment, bare: without Gymnasium's wrappers, with its forks.

    Args:
        env_id: a registered id; `module:namespace/Name-vN` imports `module` first.
        options: constructor options.

    Raises:
        UnknownName: for an id or an option that does not exist; names the nearest.
        MissingDependency: where an optional package is missing; names the extra.
    """
    import gymnasium  # noqa: PLC0415 - `import turngym` has to stay cheap

    from turngym.envs.base import TurnEnv  # noqa: PLC0415

    module, _, bare_id = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # the module is there, and misses another one
            raise UnknownName(
                f"no module {error.name!r}, which {env_id!r} names before the colon: install it, or correct the name"
            ) from error
    entry = _find(bare_id)
    env = gymnasium.make(bare_id, disable_env_checker=True, **options).unwrapped
    if not isinstance(env, TurnEnv):
        raise ConfigError(
            f"{bare_id} is a {type(env).__name__} ({entry.entry_point}), not a turngym.envs.TurnEnv"
        )
    return env


def list_envs() -> list[EnvSummary]:
    """Every registered environment, sorted by family and id."""
    _discover()
    rows = []
    for entry in _ENVS.values():
        cls = load(entry.entry_point)
        rows.append(
            EnvSummary(
                id=entry.id,
                family=entry.family,
                forking=str(cls.forking),
                description=entry.description or (cls.__doc__ or "").partition("\n")[0],
                available=entry.missing is None,
                install=entry.missing,
            )
        )
    return sorted(rows, key=lambda row: (row.family, row.id))


def _find(env_id: str) -> EnvEntry:
    if env_id not in _ENVS:
        _discover()
    if env_id in _ENVS:
        return _ENVS[env_id]
    nearest = _nearest(env_id)
    question = f" Did you mean {nearest!r}?" if nearest else ""
    raise UnknownName(f"unknown environment {env_id!r}.{question} `turngym list` shows all of them.")


def _nearest(env_id: str) -> str | None:
    """The registered id closest to `env_id`, prefix, case and version aside: the newest version of it."""
    import difflib  # noqa: PLC0415 - only where something went wrong

    newest: dict[str, tuple[int, str]] = {}
    for known in _ENVS:
        name, version = _name_and_version(known)
        newest[name] = max(newest.get(name, (-1, "")), (version, known))
    asked, _ = _name_and_version(env_id)
    close = difflib.get_close_matches(asked, newest, n=1, cutoff=0.5)
    return newest[close[0]][1] if close else None


def _name_and_version(env_id: str) -> tuple[str, int]:
    match = _ID.fullmatch(env_id)
    if match is None:
        return env_id.lower(), -1
    return match["name"].lower(), int(match["version"] or -1)


def _discover() -> None:
    for env_id, reference in entry_points("turngym.envs").items():
        if env_id not in _ENVS:
            register(env_id, reference)


def _register_with_gymnasium(entry: EnvEntry) -> None:
    from gymnasium.envs import registration  # noqa: PLC0415 - see the module

    if entry.id not in registration.registry:
        registration.register(entry.id, entry_point=entry.entry_point, kwargs=dict(entry.kwargs))


class _WhenGymnasiumComes(MetaPathFinder):
    """Registers what is waiting as soon as Gymnasium has been imported.

    Importing Gymnasium takes most of the 150 ms that `import turngym` may take, and who never plays (a viewer, a
    credit rule) never needs it.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)
        return spec


class _ThenRegister(Loader):
    """Gymnasium's own loader, and registering after it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:  # from here on the module is as if nobody had looked
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        for entry in _ENVS.values():
            _register_with_gymnasium(entry)


__all__ = ["EnvEntry", "EnvSummary", "Registry", "import_extra", "list_envs", "load", "make", "register"]
