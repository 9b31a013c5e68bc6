"""Working with plain text: wrapping, tables, slugs, abbreviations, and what changed."""

from __future__ import annotations


def wrap(text: str, width: int = 20, indent: int = 0) -> list[str]:
    """Break a text into lines of at most `width` characters between words; longer words stand alone.

    Lines after the first one are indented by so many blanks, which count as part of the line.
    """
    lines: list[str] = []
    current = ""
    for word in text.split():
        lead = "" if not lines else " " * indent
        if not current:
            current = lead + word
        elif len(current) + 1 + len(word) <= width:
            current += " " + word
        else:
            lines.append(current)
            current = " " * indent + word
    if current:
        lines.append(current)
    return lines


def slug(text: str, limit: int = 30, glue: str = "-") -> str:
    """Lower-case words of letters and digits joined by `glue`, cut after the last word that fits."""
    words: list[str] = []
    word = ""
    for letter in text.lower() + " ":
        if letter.isalnum():
            word += letter
        elif word:
            words.append(word)
            word = ""
    result = ""
    for word in words:
        longer = word if not result else result + glue + word
        if len(longer) > limit:
            break
        result = longer
    return result


def shorten(text: str, limit: int, mark: str = "...") -> str:
    """The text, or its beginning and `mark` where it has more than `limit` characters in all."""
    if len(text) <= limit:
        return text
    keep = max(limit - len(mark), 0)
    return text[:keep].rstrip() + mark[:limit]


def table(rows: list[list[str]], gap: int = 2, right: tuple[int, ...] = ()) -> list[str]:
    """Lines with aligned columns; columns whose number is in `right` are aligned on the right."""
    if not rows:
        return []
    count = max(len(row) for row in rows)
    full = [row + [""] * (count - len(row)) for row in rows]
    widths = [max(len(row[column]) for row in full) for column in range(count)]
    lines: list[str] = []
    for row in full:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((" " * gap).join(cells).rstrip())
    return lines


def initials(name: str, most: int = 3) -> str:
    """First letters of the words in capitals, without small words such as "of" or "the"."""
    small = ("of", "the", "and", "in")
    words = [word for word in name.split() if word.lower() not in small or word[0].isupper()]
    return "".join(word[0].upper() for word in words[:most])


def similarity(first: str, second: str) -> int:
    """Levenshtein's distance: how many letters have to be added, removed or replaced."""
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, start=1):
        above = row
        row = [i]
        for j, other in enumerate(second, start=1):
            cost = 0 if letter == other else 1
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + cost))
    return row[-1]


def plural(count: int, noun: str, many: str = "") -> str:
    """A number with its noun: "1 box", "2 boxes", "no boxes". `many` replaces the regular plural."""
    if not many:
        many = noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")
    if count == 0:
        return f"no {many}"
    return f"{count} {noun if abs(count) == 1 else many}"


PROBES = (
    "wrap('the quick brown fox jumps over the dog')",
    "wrap('the quick brown fox jumps', 9)",
    "wrap('aaaa bb cc', 7, 2)",
    "wrap('extraordinary a b', 5)",
    "wrap('')",
    "wrap('ab cd', 5)",
    "wrap('a b c d e f g h', 6, 1)",
    "wrap('aa bb cc dd ee ff', 5, 3)",
    "slug('Hello, World! 2nd Edition')",
    "slug('one two three four', 9)",
    "slug('one two three', 7)",
    "slug('  --  ')",
    "slug('A b', glue='_')",
    "slug('the very long title of a small book')",
    "shorten('hello world', 8)",
    "shorten('hello', 5)",
    "shorten('hello world', 9)",
    "shorten('hello', 2)",
    "shorten('hello world', 7, '~')",
    "table([['a', 'bb'], ['ccc', 'd']])",
    "table([['x', '1'], ['yy', '100']], right=(1,))",
    "table([['a'], ['b', 'c']], 1)",
    "table([])",
    "initials('United Nations of the World')",
    "initials('The Lord of the Rings')",
    "initials('a b c d', 2)",
    "initials('bed and breakfast')",
    "[similarity(a, b) for a, b in (('kitten', 'sitting'), ('', 'abc'), ('same', 'same'), ('abc', 'bc'), ('ab', 'ba'))]",
    "[plural(n, 'box') for n in (0, 1, 2)]",
    "[plural(n, 'day') for n in (-1, 1, 10)]",
    "plural(3, 'child', 'children')",
    "[plural(2, n) for n in ('bus', 'church', 'dish', 'cat')]",
)
NAMES = {
    "wrap": ("fold", "fill"),
    "slug": ("identifier", "handle"),
    "shorten": ("clip", "abridge"),
    "table": ("columns", "align"),
    "initials": ("acronym", "monogram"),
    "similarity": ("edits", "edit_distance"),
    "plural": ("counted", "inflect"),
}
