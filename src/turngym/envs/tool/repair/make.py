"""Makes and verifies the manifest of bugs.

    python -m turngym.envs.tool.repair.make --verify           # check every line of the manifest that is installed
    python -m turngym.envs.tool.repair.make --out manifest.json  # make one

A bug is verified where the code without it gives the expected answers, the code with it gives wrong ones to at least
two probes and right ones to at least two, and the diff that takes it away applies and is accepted. Everything follows
from `--seed`.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from turngym.envs.tool.repair.grading import Grader
from turngym.envs.tool.repair.instances import (
    MANIFEST,
    Answer,
    Instance,
    Repository,
    build,
    expected,
    manifest,
)
from turngym.envs.tool.repair.mutate import sites
from turngym.envs.tool.repair.render import libraries, library
from turngym.seeding import derive, generator

_LEAST = 2
_AT_ONCE = 4


async def right_answers(grader: Grader) -> dict[str, tuple[Answer, ...]]:
    """Library → what its probes give."""
    found = {}
    for name in libraries():
        part = library(name)
        bare = Repository(
            "",
            ((f"{name}.py", _text(name)),),
            "",
            "",
            "",
            ((name, part.probes),),
            ('{"error": "unknown"}',) * len(part.probes),
        )
        found[name] = (await grader.grade(bare, "")).answers
    return found


def _text(name: str) -> str:
    return (Path(__file__).parent / "libraries" / f"{name}.py").read_text(encoding="utf-8")


def candidates(seed: int, most: int) -> list[Instance]:
    """Bugs to try: at most so many of each library, drawn at random."""
    found = []
    for name in libraries():
        places = sites(library(name).tree)
        numbers = generator(seed, "sites", name).permutation(len(places))[:most]
        found += [
            Instance(
                library=name,
                site=number,
                kind=places[number].kind,
                function=places[number].function,
                seed=derive(seed, name, number) & 0x7FFFFFFF,
                fails=(),
                given="",
            )
            for number in sorted(int(n) for n in numbers)
        ]
    return found


async def verified(
    instance: Instance, grader: Grader, known: Mapping[str, tuple[Answer, ...]]
) -> Instance | str:
    """The instance with what was seen, or why it is of no use."""
    bare = build(replace(instance, fails=(), given=""), known)
    broken = await grader.grade(_alone(bare, known[instance.library]), "")
    fails, count = broken.wrong, broken.total
    if len(broken.answers) < count:
        return "the code can't be asked"
    if len(fails) < _LEAST or count - len(fails) < _LEAST:
        return f"{len(fails)} of {count} probes notice"
    seen = replace(instance, fails=fails, given=json.dumps(broken.answers[fails[0]]))
    whole = build(seen, known)
    if not (await grader.grade(_alone(whole, known[instance.library]), whole.solution)).accepted:
        return "its solution is not accepted"
    return seen


def _alone(repository: Repository, answers: Sequence[Answer]) -> Repository:
    """With the probes of the broken library alone; those of the others are the same for every bug."""
    module = repository.path.removesuffix(".py").replace("/", ".")
    probes = tuple(each for each in repository.probes if each[0] == module)
    return replace(repository, probes=probes, expected=tuple(json.dumps(answer) for answer in answers))


async def _all(
    instances: Iterable[Instance], grader: Grader, known: Mapping[str, tuple[Answer, ...]]
) -> list[Instance | str]:
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(instance: Instance) -> Instance | str:
        async with room:
            return await verified(instance, grader, known)

    return await asyncio.gather(*(one(instance) for instance in instances))


async def make(seed: int, most: int, out: Path) -> int:
    """Write a manifest; returns how many bugs it has."""
    grader = Grader()
    known = await right_answers(grader)
    tried = await _all(candidates(seed, most), grader, known)
    good = [each for each in tried if isinstance(each, Instance)]
    instances = ",\n".join(json.dumps(dataclasses.asdict(each)) for each in good)
    answers = ",\n".join(f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known))
    out.write_text(f'{{"expected": {{\n{answers}\n}},\n"instances": [\n{instances}\n]}}\n', encoding="utf-8")
    return len(good)


async def verify() -> list[str]:
    """What is wrong with the manifest that is installed, a line for each instance."""
    grader = Grader()
    complaints = [
        f"{name}: its probes give other answers now"
        for name, answers in (await right_answers(grader)).items()
        if answers != expected()[name]
    ]
    seen = await _all(manifest(), grader, expected())
    for instance, found in zip(manifest(), seen, strict=True):
        if found != instance:
            words = found if isinstance(found, str) else "other probes notice it now"
            complaints.append(f"{instance.name}: {words}")
    return complaints


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m turngym.envs.tool.repair.make", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seed", type=int, default=0, help="everything follows from it")
    parser.add_argument("--most", type=int, default=80, help="bugs to try in each library")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="write a manifest to this file")
    what.add_argument("--verify", action="store_true", help=f"check {MANIFEST.name}")
    chosen = parser.parse_args(arguments)
    if chosen.verify:
        complaints = asyncio.run(verify())
        sys.stdout.write("".join(f"{line}\n" for line in complaints))
        sys.stdout.write(f"{len(manifest())} instances, {len(complaints)} complaints\n")
        return bool(complaints)
    sys.stdout.write(f"{asyncio.run(make(chosen.seed, chosen.most, chosen.out))} instances in {chosen.out}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
