"""Settings in sections: reading them from text, looking them up by dotted names, layering and writing them."""

from __future__ import annotations

Value = bool | int | str | list[str]


def convert(text: str) -> Value:
    """A value as it is written: yes/no, a whole number, a list with commas, or a text, which may be quoted.

    Quotes keep everything in them as text.
    """
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1]
    if text.lower() in ("yes", "no"):
        return text.lower() == "yes"
    digits = text[1:] if text.startswith("-") else text
    if digits.isdigit():
        return int(text)
    if "," in text:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def read(text: str, comment: str = "#") -> dict[str, Value]:
    """Settings of a text: lines "name = value" below "[section]" lines become "section.name".

    What follows a comment sign is left out, unless the sign stands in quotes. Later lines win.

    Raises:
        ValueError: for a line that is none of these; names its number, counted from 1.
    """
    found: dict[str, Value] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        bare = _without_comment(line, comment).strip()
        if not bare:
            continue
        if bare.startswith("[") and bare.endswith("]"):
            section = bare[1:-1].strip()
            continue
        name, equals, value = bare.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"line {number}")
        key = f"{section}.{name.strip()}" if section else name.strip()
        found[key] = convert(value)
    return found


def _without_comment(line: str, comment: str) -> str:
    quoted = False
    for position, letter in enumerate(line):
        if letter == '"':
            quoted = not quoted
        elif letter == comment and not quoted:
            return line[:position]
    return line


def lookup(settings: dict[str, Value], name: str, default: Value = "") -> Value:
    """The value of a dotted name, else that of the nearest outer section, else `default`.

    "a.b.x" is looked for as "a.b.x", then as "a.x", then as "x".
    """
    *sections, last = name.split(".")
    while sections:
        key = ".".join([*sections, last])
        if key in settings:
            return settings[key]
        sections.pop()
    return settings.get(last, default)


def layer(*levels: dict[str, Value], extend: bool = False) -> dict[str, Value]:
    """All settings in one; later levels win. With `extend`, lists are put after the lists of earlier levels."""
    merged: dict[str, Value] = {}
    for level in levels:
        for name, value in level.items():
            old = merged.get(name)
            if extend and isinstance(value, list) and isinstance(old, list):
                merged[name] = old + [item for item in value if item not in old]
            else:
                merged[name] = value
    return merged


def write(settings: dict[str, Value]) -> str:
    """A text that `read` reads again: settings without a section first, then the sections by name."""
    sections: dict[str, list[str]] = {}
    for key in sorted(settings):
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {_written(settings[key])}")
    lines: list[str] = []
    for section in sorted(sections):
        if section:
            lines.append(f"[{section}]")
        lines += sections[section]
    return "\n".join(lines)


def _written(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) + ("," if len(value) == 1 else "")
    if isinstance(value, str) and convert(value) != value:
        return f'"{value}"'
    return str(value)


def unknown(settings: dict[str, Value], known: list[str]) -> list[str]:
    """Names that nobody knows, sorted. A known name that ends in ".*" stands for everything in that section."""
    prefixes = tuple(name[:-1] for name in known if name.endswith(".*"))
    return sorted(name for name in settings if name not in known and not name.startswith(prefixes))


PROBES = (
    "[convert(t) for t in ('yes', 'No', '12', '-3', '--3', ' text ', '1,2', '\\\"12\\\"', '\\\"a,b\\\"', '')]",
    "convert('a, b,')",
    "convert('\\\"')",
    "convert('-')",
    "read('a = 1\\nb = yes')",
    "read('[one]\\na = 1\\n[two]\\na = 2 # why\\n')",
    "read('# nothing\\n\\n a=\\\"x # y\\\" # z')",
    "read('a = 1\\na = 2')",
    "read('a = 1\\noops')",
    "read('= 3')",
    "read('a = b = c')",
    "read('a = 1 ; b', ';')",
    "read('[ s ]\\nx = p, q')",
    "s = read('x = 1\\n[a]\\nx = 2\\n[a.b]\\ny = 3')\n[lookup(s, n) for n in ('a.b.x', 'a.x', 'c.x', 'a.b.y', 'a.y')]",
    "lookup({}, 'a.b', 5)",
    "lookup({'b': 0}, 'a.b', 5)",
    "layer({'a': 1, 'b': 2}, {'b': 3})",
    "layer({'a': ['x', 'y']}, {'a': ['y', 'z']})",
    "layer({'a': ['x', 'y']}, {'a': ['y', 'z']}, extend=True)",
    "layer({'a': 1}, {'a': ['z']}, extend=True)",
    "layer()",
    "write({'b.x': 1, 'a': True, 'b.a': ['p', 'q'], 'a.c': 'text'})",
    "write({'a': 'yes', 'b': '12', 'c': ['one'], 'd': False})",
    "s = {'k.a': ['one'], 'k.b': 'x,y', 'z': -4}\nread(write(s)) == s",
    "write({})",
    "unknown({'a': 1, 'b.c': 2, 'd.e': 3}, ['a', 'b.*'])",
    "unknown({'b': 1, 'bc.d': 1}, ['b.*'])",
    "unknown({'a.b': 1}, [])",
)
NAMES = {
    "convert": ("interpret", "to_value"),
    "read": ("load", "parse_text"),
    "lookup": ("find", "resolve"),
    "layer": ("merge", "combine"),
    "write": ("dump", "to_text"),
    "unknown": ("strangers", "unexpected"),
}
