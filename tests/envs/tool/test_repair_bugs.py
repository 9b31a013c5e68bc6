"""The bugs of Repair-v0: what is planted, that it is one small change, and that libraries work under every name."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turngym.envs.folds import in_fold
from turngym.envs.tool.python.inside import encode
from turngym.envs.tool.repair.grading import is_right
from turngym.envs.tool.repair.inside import value_of
from turngym.envs.tool.repair.instances import build, expected, manifest
from turngym.envs.tool.repair.mutate import planted, sites
from turngym.envs.tool.repair.render import draw_names, libraries, library, renamed, renamed_text


def mutants(code: str) -> set[tuple[str, str]]:
    """(kind, code) of everything that can be planted in a function's body."""
    tree = ast.parse(f"def f(a, b):\n    {code}")
    body = [ast.unparse(planted(tree, n).body[0].body[0]) for n in range(len(sites(tree)))]  # type: ignore[attr-defined]
    return set(zip((site.kind for site in sites(tree)), body, strict=True))


@pytest.mark.parametrize(
    ("code", "planted_"),
    [
        ("return a < b", {("comparison", "return a <= b"), ("comparison", "return a > b")}),
        ("return a == b", {("comparison", "return a != b")}),
        ("return a in b", {("comparison", "return a not in b")}),
        ("return a - b", {("operator", "return a + b")}),
        ("return a // b", {("operator", "return a % b")}),
        ("return 5", {("off by one", "return 6"), ("off by one", "return 4")}),
        ("return True", {("constant", "return False")}),
        ("return 'text'", set()),
        ("return a and b", {("logic", "return a or b"), ("logic", "return a"), ("logic", "return b")}),
        ("return not a", {("sign", "return a")}),
        ("return g(a, b)", {("call", "return g(b, a)")}),
        ("return g(*a, b)", set()),
        ("return max(a)", {("call", "return min(a)")}),
        ("return a.ljust(b)", {("call", "return a.rjust(b)")}),
        ("a += b", {("update", "a = b"), ("update", "a -= b")}),
        ("g(a)", {("forgotten call", "pass")}),
        ("raise ValueError(1 + 2)", set()),
        ("a: int = b - a", {("operator", "a: int = b + a")}),
        ("return f'{a - b:02d}'", {("operator", "return f'{a + b:02d}'")}),
    ],
)
def test_what_is_planted(code: str, planted_: set[tuple[str, str]]) -> None:
    assert mutants(code) == planted_


def test_awaits_loops_and_defaults() -> None:
    tree = ast.parse(
        "async def f(n=3, on=True, t='x', m=None):\n    while n:\n        await g(n)\n        break"
    )
    changed = {(s.kind, ast.unparse(planted(tree, i))) for i, s in enumerate(sites(tree))}
    whole = ast.unparse(tree)
    assert changed == {
        ("default", whole.replace("n=3", "n=4")),
        ("default", whole.replace("n=3", "n=2")),
        ("default", whole.replace("on=True", "on=False")),
        ("default", whole.replace("t='x'", "t=''")),
        ("lost await", whole.replace("await g(n)", "g(n)")),
        ("forgotten call", whole.replace("await g(n)", "pass")),
        ("loop", whole.replace("break", "continue")),
    }


def test_a_site_knows_its_function_and_a_number_beyond_is_an_error() -> None:
    tree = ast.parse('class C:\n    """1 + 1"""\n    def m(self):\n        """2 + 2"""\n        return 1')
    assert [site.function for site in sites(tree)] == ["C.m", "C.m"]
    with pytest.raises(IndexError, match="2 places, no number 2"):
        planted(tree, 2)


@pytest.mark.parametrize("name", libraries())
def test_every_bug_is_one_change_and_still_python(name: str) -> None:
    tree = library(name).tree
    before = ast.dump(tree)
    seen = {ast.unparse(planted(tree, number)) for number in range(len(sites(tree)))}
    assert ast.unparse(tree) not in seen
    for text in seen:
        compile(text, name, "exec")
    assert ast.dump(tree) == before
    assert len(seen) > 0.9 * len(sites(tree))  # a few say the same in two ways


@pytest.mark.parametrize("name", libraries())
def test_a_library_works_under_every_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, rng = library(name), np.random.default_rng(1)
    monkeypatch.syspath_prepend(tmp_path)
    for number in range(4):
        names = (
            {old: others[-1] for old, others in part.names.items()} if number == 0 else draw_names(part, rng)
        )
        assert len(set(names.values())) == len(names)
        module = f"{name}_{number}"
        (tmp_path / f"{module}.py").write_text(ast.unparse(renamed(part.tree, names)), encoding="utf-8")
        for probe, wanted in zip(part.probes, expected()[name], strict=True):
            given: Any = value_of(module, renamed_text(probe, names), encode)
            assert is_right(given, wanted), (probe, names)
        del sys.modules[module]


def test_names_change_in_code_and_where_documentation_quotes_it() -> None:
    code = 'def put(key):\n    """Puts; see `put`."""\n    global put\n    return store.put(put=put, x="put")'
    assert renamed_text(code, {"put": "add"}) == (
        'def add(key):\n    """Puts; see `add`."""\n    global add\n    return store.add(add=add, x=\'put\')'
    )


# ---------------------------------------------------------------------- the manifest


def test_there_are_five_hundred_different_bugs_of_many_kinds() -> None:
    assert len({instance.name for instance in manifest()}) == len(manifest()) >= 500
    assert {instance.library for instance in manifest()} == set(libraries())
    kinds = Counter(instance.kind for instance in manifest())
    assert set(kinds) >= {
        *("comparison", "operator", "logic", "off by one", "default", "call", "lost await"),
        *("forgotten call", "update", "sign"),
    }
    in_test = sum(in_fold(instance.name, "test") for instance in manifest())
    assert 0.1 * len(manifest()) < in_test < 0.3 * len(manifest())


def test_the_manifest_says_what_the_code_says() -> None:
    places = {name: sites(library(name).tree) for name in libraries()}
    for instance in manifest():
        site = places[instance.library][instance.site]
        assert (site.kind, site.function) == (instance.kind, instance.function)
        assert 2 <= len(instance.fails) <= len(expected()[instance.library]) - 2


def test_a_repository_is_always_the_same_and_never_tells() -> None:
    for instance in manifest()[::40]:
        repository = build(instance)
        assert repository == build(instance)
        files = dict(repository.files)
        assert repository.original not in files.values()
        assert repository.broken != repository.original
        assert len(repository.probes) == 3
        assert len(repository.expected) == sum(len(probes) for _, probes in repository.probes)
        assert repository.solution.count("\n@@") == 1
        for path, text in files.items():
            if path.endswith(".py"):
                compile(text, path, "exec")


def test_tests_hold_no_probe_that_notices_and_the_report_holds_one() -> None:
    for instance in manifest()[::40]:
        repository = build(instance)
        part = library(instance.library)
        module = repository.path.removesuffix(".py").replace("/", ".")
        probes = dict(repository.probes)[module]
        tests = dict(repository.files)[f"tests/test_{instance.library}.py"]
        for i in instance.fails:
            last = ast.unparse(ast.parse(probes[i]).body[-1])
            assert f"assertEqual({last}," not in tests or part.probes.count(part.probes[i]) > 1
        assert probes[instance.fails[0]].splitlines()[-1] in repository.report
        assert "By the documentation it" in repository.report


def test_another_seed_gives_another_repository_with_the_same_bug() -> None:
    instance = manifest()[0]
    repositories = {build(replace(instance, seed=seed)).files for seed in range(8)}
    assert len(repositories) == 8
