"""What the layout promises: layers, public names, links, import time, and that the wheel is whole."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import turngym

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "turngym"
ROOMS = ("envs", "agents", "trainers", "tasks", "sandbox")

# errors, types, tree ← sandbox, tasks ← envs ← agents ← trainers ← cli. What is not listed is the base layer.
LAYER = {
    "sandbox": 1,
    "tasks": 1,
    "envs": 2,
    "registry": 2,
    "agents": 3,
    "trainers": 4,
    "view": 4,
    "cli": 5,
    "cli_sandbox": 5,
    "__main__": 5,
}
TORCH_ALLOWED = {"trainers", "agents.policies"}


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found.append((".".join(p for p in parts if p != "__init__"), path))
    return found


def imported(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Absolute names of the modules that a file imports; type-checking blocks don't count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    skip = {
        id(n)
        for b in ast.walk(tree)
        if isinstance(b, ast.If) and "TYPE_CHECKING" in ast.dump(b.test)
        for n in ast.walk(b)
    }
    for node in tree.body if top_level_only else ast.walk(tree):
        if id(node) in skip:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def layer(module: str) -> int:
    return LAYER.get(module.split(".", maxsplit=1)[0], 0)


@pytest.mark.parametrize(
    ("module", "path"), [m for m in modules() if m[0]], ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_module_imports_its_own_layer_and_those_below(module: str, path: Path) -> None:
    for name in imported(path):
        if name.startswith("turngym."):
            other = name.removeprefix("turngym.")
            assert layer(other) <= layer(module), f"{module} imports {other}, which lies above it"


@pytest.mark.parametrize(
    ("module", "path"), [m for m in modules() if m[0]], ids=lambda v: v if isinstance(v, str) else ""
)
def test_only_trainers_and_model_policies_import_torch(module: str, path: Path) -> None:
    if any(module == home or module.startswith(f"{home}.") for home in TORCH_ALLOWED):
        return
    heavy = {n.split(".")[0] for n in imported(path)} & {"torch", "transformers", "peft", "vllm"}
    assert not heavy, f"{module} imports {heavy}"


def test_public_names_are_what_is_importable() -> None:
    assert len(turngym.__all__) <= 40
    assert turngym.__all__ == sorted(turngym.__all__)
    for name in turngym.__all__:
        assert getattr(turngym, name) is not None
    assert set(dir(turngym)) == {*turngym.__all__, "__version__"}
    with pytest.raises(AttributeError):
        turngym.nothing_of_that_name  # noqa: B018


def test_the_supervisor_of_sandboxes_loads_little() -> None:
    """Every sandbox that starts waits for these imports."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from inside import supervisor;"
        "print(*sorted({'typing', 'asyncio', 'subprocess', 'tempfile', 'pathlib', 'hashlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(SOURCE / "sandbox")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []


def test_import_is_quick_and_needs_no_torch() -> None:
    script = (
        "import json, resource, sys, turngym;"
        "u = resource.getrusage(resource.RUSAGE_SELF);"
        "print(json.dumps([u.ru_utime + u.ru_stime, 'torch' in sys.modules, 'transformers' in sys.modules]))"
    )
    bare = (
        "import json, resource; u = resource.getrusage(resource.RUSAGE_SELF); print(u.ru_utime + u.ru_stime)"
    )
    # CPU seconds, since a loaded machine stretches the wall clock; BLAS would start a thread per core.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def run(code: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
        ).stdout

    loaded = [json.loads(run(script)) for _ in range(5)]
    assert not any(torch or transformers for _, torch, transformers in loaded)
    interpreter = min(float(run(bare)) for _ in range(5))
    assert min(seconds for seconds, *_ in loaded) - interpreter < 0.150


@pytest.mark.parametrize("room", ROOMS)
def test_the_root_shows_the_rooms(room: str) -> None:
    link = ROOT / room
    assert link.is_symlink()
    assert os.readlink(link) == f"src/turngym/{room}"
    assert (link / "__init__.py").is_file()


def test_every_module_imports_by_its_name() -> None:
    for module, _ in modules():
        if module and module != "__main__":
            importlib.import_module(f"turngym.{module}")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    # `--no-isolation` builds with the setuptools that is installed, so nothing is fetched.
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    return next(out.glob("*.whl"))


def test_the_wheel_holds_every_file_that_git_holds(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "src/turngym"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    in_git = {line.removeprefix("src/") for line in listed.stdout.splitlines()}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if name.startswith("turngym/")}
    assert in_git - in_wheel == set()
