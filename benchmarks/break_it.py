"""Break the numbers on purpose, one at a time, and see whether the tests notice.

    python benchmarks/break_it.py [--json FILE] [--only WORD] [--workers N]

Each of twenty mutations flips one sign, mask, denominator or offset in credit, losses or packing, and each of eight more
breaks an invariant of the whole library, in a copy of the repository, and runs the tests that stand watch over that
file until one fails. A mutation that no test catches is a hole in the tests. A failure means something where the same test passes unbroken, so at the end all tests that caught
something run again in an unbroken copy; and a mutation has to make a test fail, not Python: one that can't be imported
or collected is an error of the list here.

Target: all of them.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from _report import report

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 3600
NOTHING = "nothing"
PASSED, FAILED = 0, 1  # pytest's own exit codes; the others mean that no test was run as it should

CREDIT = (
    "credit_vectors",
    "credit_edges",
    "turn_rules",
    "group_rules",
    "subtrees",
    "forked_paths",
    "credit_properties",
    "credit_unbiased",
)
LOSSES = ("loss_vectors", "corrections", "ratio_losses", "loss_properties")


def credit(first: str = "credit_vectors") -> tuple[str, ...]:
    """The tests of the credit rules, the likeliest first."""
    return _paths("tests/trainers/credit", first, CREDIT)


def losses(first: str = "loss_vectors") -> tuple[str, ...]:
    """The tests of the losses, the likeliest first."""
    return _paths("tests/trainers/losses", first, LOSSES)


def _paths(folder: str, first: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{folder}/test_{name}.py" for name in dict.fromkeys((first, *names)))


PACKING = ("tests/trainers/test_packing.py",)
ROWS = ("tests/trainers/test_rows.py",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One line that is no longer right."""

    kind: str
    "sign, mask, denominator or offset, or the invariant that no longer holds"
    file: str
    "below src/turngym"
    right: str
    "stands in the file exactly once"
    wrong: str
    tests: tuple[str, ...]
    "that stand watch; they run until one fails"

    @property
    def name(self) -> str:
        return f"{self.file}: {self.wrong.strip()}"


MUTATIONS = (
    # ------------------------------------------------------------------ credit
    Mutation(
        kind="sign",
        file="trainers/credit/tree_rloo.py",
        right="weight * (value - baseline)",
        wrong="weight * (baseline - value)",
        tests=credit(),
    ),
    Mutation(
        kind="denominator",
        file="trainers/credit/tree_rloo.py",
        right="weight[below] /= len(below)",
        wrong="weight[below] /= k",
        tests=credit(),
    ),
    Mutation(
        kind="denominator",
        file="trainers/credit/base.py",
        right="(math.fsum(values) - values) / (len(values) - 1)",
        wrong="(math.fsum(values) - values) / len(values)",
        tests=credit(),
    ),
    Mutation(
        kind="denominator",
        file="trainers/credit/base.py",
        right='(1 if std == "unbiased" else 0)',
        wrong='(0 if std == "unbiased" else 1)',
        tests=credit(),
    ),
    Mutation(
        kind="mask",
        file="trainers/credit/base.py",
        right=" and tree[leaf].outcome is not Outcome.SUCCESS",
        wrong="",
        tests=credit("credit_edges"),
    ),
    Mutation(
        kind="mask",
        file="trainers/credit/base.py",
        right="            void += 1\n            continue\n",
        wrong="            void += 1\n",
        tests=credit("credit_edges"),
    ),
    Mutation(
        kind="denominator",
        file="trainers/credit/turns.py",
        right="delta + gamma * lam * following[node]",
        wrong="delta + lam * following[node]",
        tests=credit("turn_rules"),
    ),
    Mutation(
        kind="offset",
        file="trainers/credit/elpo.py",
        right="actions[int(turn) :]",
        wrong="actions[int(turn) + 1 :]",
        tests=credit(),
    ),
    Mutation(
        kind="offset",
        file="trainers/credit/tokens.py",
        right="out[np.flatnonzero(mask)[-1:]] = reward",
        wrong="out[-1:] = reward",
        tests=credit("turn_rules"),
    ),
    # ------------------------------------------------------------------ losses
    Mutation(
        kind="sign",
        file="trainers/losses/policy_gradient.py",
        right='trained.reduce(-trained.constant("advantages") * ratio)',
        wrong='trained.reduce(trained.constant("advantages") * ratio)',
        tests=losses(),
    ),
    Mutation(
        kind="sign",
        file="trainers/losses/policy_gradient.py",
        right="return torch.maximum(-advantages * ratio",
        wrong="return torch.minimum(-advantages * ratio",
        tests=losses(),
    ),
    Mutation(
        kind="sign",
        file="trainers/losses/policy_gradient.py",
        right='1 - clip_low - trained.constant("lower_clip_extra", 0.0)',
        wrong='1 - clip_low + trained.constant("lower_clip_extra", 0.0)',
        tests=losses(),
    ),
    Mutation(
        kind="denominator",
        file="trainers/losses/base.py",
        right='self.constant("weights", 1.0)).sum() / self.batch.denominator',
        wrong='self.constant("weights", 1.0)).sum() / max(len(self), 1)',
        tests=losses(),
    ),
    Mutation(
        kind="denominator",
        file="trainers/losses/aggregation.py",
        right="1.0 / torch.bincount(trained)[trained]",
        wrong="1.0 / torch.bincount(ids)[trained]",
        tests=losses(),
    ),
    Mutation(
        kind="mask",
        file="trainers/losses/mismatch.py",
        right="return ((values >= low) & (values <= high)).to(values.dtype)",
        wrong="return (values <= high).to(values.dtype)",
        tests=losses("corrections"),
    ),
    Mutation(
        kind="mask",
        file="trainers/losses/reinforce.py",
        right="torch.where(low | high, 0.0, log.exp())",
        wrong="torch.where(high, 0.0, log.exp())",
        tests=losses("ratio_losses"),
    ),
    # ------------------------------------------------------------------ packing
    Mutation(
        kind="offset",
        file="trainers/packing.py",
        right="[path[row.targets - 1] for row, path",
        wrong="[path[row.targets] for row, path",
        tests=PACKING,
    ),
    Mutation(
        kind="mask",
        file="trainers/tree_attention.py",
        right="return (keys <= queries) & (queries < last[keys])",
        wrong="return (keys <= queries) & (queries <= last[keys])",
        tests=PACKING,
    ),
    Mutation(
        kind="offset",
        file="trainers/packing.py",
        right="[np.arange(k, row.ids.size, dtype=np.int32) for row, k",
        wrong="[np.arange(row.ids.size - k, dtype=np.int32) for row, k",
        tests=PACKING,
    ),
    Mutation(
        kind="mask",
        file="trainers/rows.py",
        right="n.is_action and n.index not in owned and n.advantage is not None",
        wrong="n.is_action and n.advantage is not None",
        tests=ROWS,
    ),
)

INVARIANTS = (
    Mutation(
        kind="tokens",
        file="agents/loop.py",
        right="        context.extend(sample.ids)\n",
        wrong="        context.extend(sample.ids[:-1])\n",
        tests=("tests/agents/test_loop.py",),
    ),
    Mutation(
        kind="contexts",
        file="trainers/schedule.py",
        right="rollouts = list(by_rollout(rows).values())",
        wrong="rollouts = [[row] for row in rows]",
        tests=("tests/trainers/test_learner_losses.py",),
    ),
    Mutation(
        kind="forks",
        file="envs/base.py",
        right="return copy.deepcopy(state)",
        wrong="return state",
        tests=("tests/envs/test_base.py", "tests/envs/test_checker.py", "tests/envs/text"),
    ),
    Mutation(
        kind="isolation",
        file="agents/policies/scripted.py",
        right="rng = np.random.Generator(np.random.Philox(seed))",
        wrong="rng = np.random",
        tests=("tests/agents/test_scripted.py", "tests/agents/test_rollout.py"),
    ),
    Mutation(
        kind="faults",
        file="trainers/credit/base.py",
        right="if stop.is_fault:",
        wrong="if False:",
        tests=credit("credit_edges"),
    ),
    Mutation(
        kind="faults",
        file="agents/loop.py",
        right="return close_void(tree, action, _as_fault(error, EnvFault, options))",
        wrong="return _close(tree, action, StopReason.TERMINATED, success=False)",
        tests=("tests/agents/test_loop.py",),
    ),
    Mutation(
        kind="seeds",
        file="seeding.py",
        right="z = (member_seed + (turn + 1) * 0x9E3779B97F4A7C15) & _MASK",
        wrong="z = (id(object()) + member_seed + (turn + 1) * 0x9E3779B97F4A7C15) & _MASK",
        tests=("tests/test_seeding.py", "tests/agents/test_rollout.py"),
    ),
    Mutation(
        kind="names",
        file="options.py",
        right="            if name not in known:",
        wrong="            if False:",
        tests=("tests/test_options.py",),
    ),
)
"""A line each of what every run relies on: tokens and contexts, forks, isolation, faults, seeds, names."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Break the numbers on purpose; see whether the tests notice."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--only", default="", metavar="WORD", help="mutations of files with this in their name"
    )
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="copies at once")
    options = parser.parse_args()
    everything = (*MUTATIONS, *INVARIANTS)
    chosen = [mutation for mutation in everything if options.only in mutation.file]
    for mutation in chosen:
        source = (ROOT / "src/turngym" / mutation.file).read_text(encoding="utf-8")
        if source.count(mutation.right) != 1:
            raise SystemExit(
                f"{mutation.file} holds {mutation.right!r} {source.count(mutation.right)} times: bring the list up to date"
            )
    with copies(options.workers) as free:
        with ThreadPoolExecutor(options.workers) as pool:
            rows = list(pool.map(lambda mutation: attempt(mutation, free), chosen))
        must_pass_unbroken(sorted({str(row["caught by"]) for row in rows} - {NOTHING}), free)
    caught = sum(row["caught by"] != NOTHING for row in rows)
    report(
        f"Mutations: {caught} of {len(rows)} caught",
        rows,
        figures={"caught": caught, "mutations": len(rows)},
        json_path=options.json,
    )
    if caught < len(rows):
        raise SystemExit(1)


@contextmanager
def copies(count: int) -> Iterator[queue.Queue[Path]]:
    """`count` copies of what the tests need, for as long as the block lasts."""
    free: queue.Queue[Path] = queue.Queue()
    with tempfile.TemporaryDirectory(prefix="turngym-break-it-") as folder:
        for i in range(count):
            copy = Path(folder, str(i))
            for part in ("src", "tests"):
                shutil.copytree(
                    ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
                )
            shutil.copy(ROOT / "pyproject.toml", copy)
            free.put(copy)
        yield free


def attempt(mutation: Mutation, free: queue.Queue[Path]) -> dict[str, object]:
    """Break a copy, run the tests, repair it."""
    copy = free.get()
    file = copy / "src/turngym" / mutation.file
    source = file.read_text(encoding="utf-8")
    began = time.perf_counter()
    try:
        file.write_text(source.replace(mutation.right, mutation.wrong), encoding="utf-8")
        code, tail = run_tests(copy, mutation.tests)
    finally:
        file.write_text(source, encoding="utf-8")
        free.put(copy)
    if code not in (PASSED, FAILED):
        raise SystemExit(
            f"{mutation.name}: pytest ended with {code}, which says nothing about the tests:\n{tail}"
        )
    failed = [
        line.split(" - ")[0].removeprefix("FAILED ")
        for line in tail.splitlines()
        if line.startswith("FAILED ")
    ]
    caught = failed[0] if failed else NOTHING
    if (code == FAILED) != bool(failed):
        raise SystemExit(f"{mutation.name}: pytest ended with {code} and does not say why:\n{tail}")
    print(f"{mutation.kind:12}{mutation.name}  →  {caught}", flush=True)
    return {
        "kind": mutation.kind,
        "file": mutation.file,
        "broken": mutation.wrong.strip(),
        "caught by": caught,
        "seconds": round(time.perf_counter() - began),
    }


def must_pass_unbroken(tests: Sequence[str], free: queue.Queue[Path]) -> None:
    """Tests that fail whether anything is broken or not have caught nothing."""
    if not tests:
        return
    copy = free.get()
    code, tail = run_tests(copy, tests)
    free.put(copy)
    if code != PASSED:
        raise SystemExit(f"a test that caught a mutation fails without one as well:\n{tail}")
    print(f"the {len(tests)} tests that caught something pass unbroken", flush=True)


def run_tests(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Exit code of pytest in a copy, and the end of what it said. No compiled file is written, so none is stale."""
    environment = os.environ | {
        "PYTHONPATH": str(copy / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr)[-4000:]


if __name__ == "__main__":
    main()
