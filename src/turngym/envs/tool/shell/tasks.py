"""Tasks for a shell: files at the start, words, and what has to be there at the end.

Three levels: one short command on a file; one command on a text; work on a tree of files. Each kind of task is a
function of a random generator. `wanted` names every file that matters, those that must stay as they were included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

WORDS = (
    "red", "blue", "green", "gold", "pink", "grey", "lime", "teal", "apple", "pear", "plum", "fig", "lemon", "grape",
    "cat", "dog", "fox", "owl", "bee", "ant", "sun", "moon", "star", "rain", "snow", "wind",
)  # fmt: skip
NAMES = tuple(f"{colour}{digit}" for colour in ("red", "blue", "green", "gold") for digit in range(10))
"For short tasks: models of a million parameters read them as two tokens."
FOLDERS = ("old", "new", "work", "keep", "data", "logs", "docs", "misc")
EXTENSIONS = ("txt", "csv", "log", "md", "dat")


@dataclass(frozen=True, slots=True)
class ShellTask:
    """One task. Paths are relative to the workspace; a path that ends in `/` is a directory."""

    words: str
    files: tuple[tuple[str, str], ...]
    "path → content at the start"
    wanted: tuple[tuple[str, str | None], ...]
    "path → content at the end, trailing newlines aside; None: nothing may be there"
    solution: str
    "a command that does it"


Kind = Callable[[np.random.Generator], ShellTask]


def pick(rng: np.random.Generator, options: Sequence[str], count: int) -> list[str]:
    """`count` different ones of `options`."""
    return [options[int(i)] for i in rng.choice(len(options), size=count, replace=False)]


def task(words: str, files: Mapping[str, str], changes: Mapping[str, str | None], solution: str) -> ShellTask:
    """A task after which `changes` hold and all other files are as they were."""
    wanted = {**files, **changes}
    return ShellTask(words, tuple(files.items()), tuple(wanted.items()), solution)


def _some_files(rng: np.random.Generator, count: int) -> tuple[dict[str, str], list[str]]:
    """Files with a line each, and two names that are free."""
    names = pick(rng, NAMES, count + 2)
    contents = pick(rng, WORDS, count)
    return dict(zip(names, (f"{word}\n" for word in contents), strict=False)), names[count:]


def _lines(rng: np.random.Generator, count: int, different: int) -> list[str]:
    known = pick(rng, WORDS, different)
    return [known[int(i)] for i in rng.integers(different, size=count)]


def _text(lines: Sequence[object]) -> str:
    return "".join(f"{line}\n" for line in lines)


# ---------------------------------------------------------------------- level 1: one short command


def remove(rng: np.random.Generator) -> ShellTask:
    """Delete one file."""
    files, _ = _some_files(rng, 3)
    (name,) = pick(rng, list(files), 1)
    return task(f"Delete the file {name}.", files, {name: None}, f"rm {name}")


def rename(rng: np.random.Generator) -> ShellTask:
    """Rename one file."""
    files, (new, _) = _some_files(rng, 3)
    (name,) = pick(rng, list(files), 1)
    return task(
        f"Rename the file {name} to {new}.", files, {name: None, new: files[name]}, f"mv {name} {new}"
    )


def copy(rng: np.random.Generator) -> ShellTask:
    """Copy one file."""
    files, (new, _) = _some_files(rng, 3)
    (name,) = pick(rng, list(files), 1)
    return task(f"Copy the file {name} to {new}.", files, {new: files[name]}, f"cp {name} {new}")


def make_folder(rng: np.random.Generator) -> ShellTask:
    """Make a directory."""
    files, (new, _) = _some_files(rng, 2)
    return task(f"Make a folder named {new}.", files, {f"{new}/": ""}, f"mkdir {new}")


def say(rng: np.random.Generator) -> ShellTask:
    """Write a word to a file."""
    files, (new, word) = _some_files(rng, 2)
    return task(f"Write {word} to the file {new}.", files, {new: word}, f"echo {word} > {new}")


# ---------------------------------------------------------------------- level 2: one command on a text


def count_lines(rng: np.random.Generator) -> ShellTask:
    """Count lines that contain a word."""
    lines = _lines(rng, int(rng.integers(6, 30)), 4)
    word = lines[int(rng.integers(len(lines)))]
    count = sum(word in line for line in lines)
    return task(
        f"Write to count.txt how many lines of list.txt contain {word}.",
        {"list.txt": _text(lines)},
        {"count.txt": str(count)},
        f"grep -c {word} list.txt > count.txt",
    )


def sort_lines(rng: np.random.Generator) -> ShellTask:
    """Sort lines, with or without repetitions."""
    lines, unique = _lines(rng, int(rng.integers(6, 20)), 6), bool(rng.integers(2))
    ordered = sorted(set(lines) if unique else lines)
    how = ", each different line once" if unique else ""
    return task(
        f"Write the lines of list.txt to sorted.txt in alphabetical order{how}.",
        {"list.txt": _text(lines)},
        {"sorted.txt": _text(ordered)},
        f"LC_ALL=C sort {'-u ' if unique else ''}list.txt > sorted.txt",
    )


def cut_lines(rng: np.random.Generator) -> ShellTask:
    """Keep the first or the last lines."""
    lines, count = _lines(rng, int(rng.integers(8, 20)), 6), int(rng.integers(2, 6))
    first = bool(rng.integers(2))
    kept = lines[:count] if first else lines[-count:]
    return task(
        f"Write the {'first' if first else 'last'} {count} lines of list.txt to part.txt.",
        {"list.txt": _text(lines)},
        {"part.txt": _text(kept)},
        f"{'head' if first else 'tail'} -n {count} list.txt > part.txt",
    )


def replace(rng: np.random.Generator) -> ShellTask:
    """Replace a word in a file."""
    lines = _lines(rng, int(rng.integers(5, 12)), 4)
    old, (new,) = lines[0], pick(rng, [word for word in WORDS if word not in lines], 1)
    changed = [line.replace(old, new) for line in lines]
    return task(
        f"In list.txt, replace every {old} by {new}.",
        {"list.txt": _text(lines)},
        {"list.txt": _text(changed)},
        f"sed -i s/{old}/{new}/g list.txt",
    )


def column(rng: np.random.Generator) -> ShellTask:
    """Take one column of a table."""
    width, chosen = 4, int(rng.integers(1, 5))
    rows = [_lines(rng, width, 8) for _ in range(int(rng.integers(4, 9)))]
    return task(
        f"table.csv has {width} columns separated by commas. Write column {chosen} to column.txt, one value a line.",
        {"table.csv": _text([",".join(row) for row in rows])},
        {"column.txt": _text([row[chosen - 1] for row in rows])},
        f"cut -d , -f {chosen} table.csv > column.txt",
    )


def total(rng: np.random.Generator) -> ShellTask:
    """Add numbers up, some of them below a bound."""
    values, bound = rng.integers(1, 100, size=int(rng.integers(5, 15))).tolist(), int(rng.integers(20, 80))
    return task(
        f"numbers.txt has a number on each line. Write the sum of those that are at least {bound} to sum.txt.",
        {"numbers.txt": _text(values)},
        {"sum.txt": str(sum(v for v in values if v >= bound))},
        f"awk '$1 >= {bound} {{ s += $1 }} END {{ print s + 0 }}' numbers.txt > sum.txt",
    )


# ---------------------------------------------------------------------- level 3: a tree of files


def _tree(rng: np.random.Generator, count: int = 9) -> dict[str, str]:
    """Files of several kinds in several directories; names differ everywhere."""
    names = pick(rng, WORDS, count)
    folders = pick(rng, FOLDERS, 3)
    kinds = pick(rng, EXTENSIONS, 3)
    places = rng.integers(3, size=(count, 2)).tolist()
    return {
        f"{folders[f]}/{name}.{kinds[k]}": _text(_lines(rng, int(rng.integers(1, 6)), 4))
        for name, (f, k) in zip(names, places, strict=True)
    }


def _kind_in(rng: np.random.Generator, files: Mapping[str, str]) -> str:
    return pick(rng, sorted({path.rsplit(".", 1)[1] for path in files}), 1)[0]


def gather(rng: np.random.Generator) -> ShellTask:
    """Move all files of one kind to one directory."""
    files = _tree(rng)
    kind = _kind_in(rng, files)
    moved = {path: content for path, content in files.items() if path.endswith(f".{kind}")}
    there = {f"all/{path.rsplit('/', 1)[1]}": content for path, content in moved.items()}
    return task(
        f"Move every .{kind} file, wherever it is, into a new folder named all.",
        files,
        {**dict.fromkeys(moved), **there},
        f"mkdir all && find . -name '*.{kind}' -not -path './all/*' -exec mv {{}} all/ \\;",
    )


def new_extension(rng: np.random.Generator) -> ShellTask:
    """Rename all files of one kind."""
    files = _tree(rng)
    kind = _kind_in(rng, files)
    moved = {path: content for path, content in files.items() if path.endswith(f".{kind}")}
    there = {f"{path.rsplit('.', 1)[0]}.bak": content for path, content in moved.items()}
    return task(
        f"Rename every .{kind} file, wherever it is, to end in .bak instead.",
        files,
        {**dict.fromkeys(moved), **there},
        f'find . -name "*.{kind}" | while read -r f; do mv "$f" "${{f%.{kind}}}.bak"; done',
    )


def where_is(rng: np.random.Generator) -> ShellTask:
    """Find the files that contain a word."""
    files = _tree(rng)
    words = sorted({line for content in files.values() for line in content.split()})
    (word,) = pick(rng, words, 1)
    found = sorted(path for path, content in files.items() if word in content)
    return task(
        f"Write to found.txt the paths of all files that contain {word}, like {FOLDERS[0]}/{WORDS[0]}.txt, "
        "sorted, one a line.",
        files,
        {"found.txt": _text(found)},
        f"grep -rl {word} */ | LC_ALL=C sort > found.txt",
    )


def tidy(rng: np.random.Generator) -> ShellTask:
    """Delete files with few lines."""
    files, least = _tree(rng), int(rng.integers(2, 5))
    gone = [path for path, content in files.items() if content.count("\n") < least]
    return task(
        f"Delete every file that has fewer than {least} lines.",
        files,
        dict.fromkeys(gone),
        f'find . -type f | while read -r f; do [ "$(wc -l < "$f")" -lt {least} ] && rm "$f"; done; true',
    )


def join(rng: np.random.Generator) -> ShellTask:
    """Concatenate files in the order of their paths."""
    files = _tree(rng, 6)
    return task(
        "Write the contents of all files to joined.txt, one after the other, in the alphabetical order of their paths.",
        files,
        {"joined.txt": "".join(files[path] for path in sorted(files))},
        "find . -type f | LC_ALL=C sort | xargs cat > /tmp/joined && mv /tmp/joined joined.txt",
    )


def census(rng: np.random.Generator) -> ShellTask:
    """Count files by kind."""
    files = _tree(rng)
    kinds = [path.rsplit(".", 1)[1] for path in files]
    lines = [f"{kind} {kinds.count(kind)}" for kind in sorted(set(kinds))]
    return task(
        "Write to census.txt a line for each file extension: the extension without dot, a space, and how many files "
        "have it; sorted by extension.",
        files,
        {"census.txt": _text(lines)},
        "find . -type f | sed 's/.*\\.//' | LC_ALL=C sort | uniq -c | awk '{ print $2, $1 }' > /tmp/c "
        "&& mv /tmp/c census.txt",
    )


LEVELS: Mapping[int, tuple[Kind, ...]] = {
    1: (remove, rename, copy, make_folder, say),
    2: (count_lines, sort_lines, cut_lines, replace, column, total),
    3: (gather, new_extension, where_is, tidy, join, census),
}
