"""What every benchmark shares: a table for people and, with `--json FILE`, the figures for machines.

    from _report import parse_json_flag, report

    if __name__ == "__main__":
        json_path = parse_json_flag()
        rows = [{"what": "save", "seconds": 0.93, "target": "<= 5"}]
        report("Record", rows, figures={"save_seconds": 0.93}, json_path=json_path)

`python benchmarks/x.py` puts this folder on the path, so the import needs nothing else. The file then holds
`{"figures": {"save_seconds": 0.93}}`. A benchmark with flags of its own parses them itself and hands over the path.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table


def parse_json_flag(arguments: Sequence[str] | None = None) -> Path | None:
    """The FILE of `--json FILE`, None without the flag; anything else ends the program with the usage."""
    match sys.argv[1:] if arguments is None else list(arguments):
        case []:
            return None
        case ["--json", file]:
            return Path(file)
    raise SystemExit(f"usage: python {sys.argv[0]} [--json FILE]")


def report(
    title: str,
    rows: Sequence[Mapping[str, object]],
    figures: Mapping[str, float],
    json_path: Path | None = None,
) -> None:
    """Print `rows` as a table under `title`, and write `figures` to `json_path`.

    Args:
        title: what was measured, in a few words.
        rows: one mapping a line, column name to value; the first row gives the columns and their order. Floats are
            shown with four significant digits; what a row leaves out stays empty.
        figures: name to a finite number, as other tools track them.
        json_path: where the figures go; None writes no file.

    Raises:
        ValueError: for a figure that is not finite, before anything is printed.
    """
    text = json.dumps({"figures": dict(figures)}, allow_nan=False, indent=2) + "\n"
    columns = list(rows[0]) if rows else []
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right" if isinstance(rows[0][name], int | float) else "left")
    for row in rows:
        table.add_row(*(_cell(row.get(name, "")) for name in columns))
    Console().print(table)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(text)


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
