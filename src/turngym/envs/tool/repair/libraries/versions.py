"""Version numbers and what depends on what: comparing, ranges, choosing, and raising versions."""

from __future__ import annotations

Version = tuple[int, int, int]


def parse(text: str) -> tuple[Version, str]:
    """Numbers and label of a version: "1.2" is ((1, 2, 0), ""), "v1.2.3-rc1" is ((1, 2, 3), "rc1").

    Raises:
        ValueError: for what is no version.
    """
    numbers, dash, label = text.strip().removeprefix("v").partition("-")
    parts = numbers.split(".")
    if len(parts) > 3 or not all(part.isdigit() for part in parts) or (dash and not label):
        raise ValueError("no version")
    values = [int(part) for part in parts] + [0] * (3 - len(parts))
    return (values[0], values[1], values[2]), label


def compare(first: str, second: str) -> int:
    """-1, 0 or 1 as the first version is older, equal or newer. A label makes a version older than the same without."""
    (a, label_a), (b, label_b) = parse(first), parse(second)
    if a != b:
        return 1 if a > b else -1
    if label_a == label_b:
        return 0
    if not label_a or not label_b:
        return 1 if not label_a else -1
    return 1 if label_a > label_b else -1


def matches(version: str, rule: str) -> bool:
    """Whether a version keeps a rule: parts with commas, all of which have to hold.

    Parts: "1.2" (equal), ">=1", ">1", "<=2", "<2", "!=1.5", "^1.2" (same first number, not older) and
    "~1.2" (same first two numbers, not older). Versions with a label keep no rule but that which names them exactly.
    """
    if parse(version)[1]:
        return rule.strip() == version
    return all(_keeps(version, part.strip()) for part in rule.split(",") if part.strip())


def _keeps(version: str, part: str) -> bool:
    numbers = parse(version)[0]
    if part[0] in "^~":
        wanted = parse(part[1:])[0]
        same = 1 if part[0] == "^" else 2
        return numbers[:same] == wanted[:same] and numbers >= wanted
    for sign in (">=", "<=", "!=", ">", "<"):
        if part.startswith(sign):
            order = compare(version, part[len(sign) :])
            return {">=": order >= 0, "<=": order <= 0, "!=": order != 0, ">": order > 0, "<": order < 0}[
                sign
            ]
    return compare(version, part) == 0


def newest(versions: list[str], rule: str = "", labels: bool = False) -> str:
    """The newest version that keeps a rule; "" where there is none. Versions with labels count only on request."""
    best = ""
    for version in versions:
        labelled = bool(parse(version)[1])
        if labelled and not labels:
            continue
        if rule and not labelled and not matches(version, rule):
            continue
        if not best or compare(version, best) > 0:
            best = version
    return best


def raised(version: str, part: str = "patch", by: int = 1) -> str:
    """The version after a change of a part (major, minor, patch): smaller parts start at 0 again, labels go away.

    A labelled version becomes the version without its label when its patch is raised by 1.
    """
    (major, minor, patch), label = parse(version)
    if part == "major":
        return f"{major + by}.0.0"
    if part == "minor":
        return f"{major}.{minor + by}.0"
    if label and by == 1:
        return f"{major}.{minor}.{patch}"
    return f"{major}.{minor}.{patch + by}"


def resolve(wanted: dict[str, str], offers: dict[str, dict[str, dict[str, str]]]) -> dict[str, str]:
    """Choose the newest version of every package that is needed, with what those versions need in turn.

    Args:
        wanted: package to rule.
        offers: package to version to what that version needs (package to rule).

    Raises:
        LookupError: where no version keeps all rules for a package known so far; names the package.
    """
    rules: dict[str, list[str]] = {name: [rule] for name, rule in wanted.items()}
    chosen: dict[str, str] = {}
    waiting = sorted(wanted)
    while waiting:
        name = waiting.pop(0)
        version = newest(list(offers.get(name, {})), ",".join(rules[name]))
        if not version:
            raise LookupError(name)
        if chosen.get(name) == version:
            continue
        chosen[name] = version
        for other, rule in sorted(offers[name][version].items()):
            rules.setdefault(other, [])
            if rule not in rules[other]:
                rules[other].append(rule)
            waiting.append(other)
    return chosen


PROBES = (
    "[parse(t) for t in ('1', '1.2', 'v1.2.3', '1.2.3-rc1', ' 2.0 ')]",
    "parse('1.2.3.4')",
    "parse('1.x')",
    "parse('1-')",
    "[compare(a, b) for a, b in (('1.2', '1.2.0'), ('1.10', '1.9'), ('1.0-a', '1.0'), ('1.0', '1.0-a'), ('1-b', '1-a'), ('2', '3'), ('1-a', '1-a'))]",
    "[matches('1.4.2', r) for r in ('1.4.2', '>=1.4', '>1.4.2', '<2', '<=1.4.1', '!=1.4.2', '!=1.4')]",
    "[matches('1.4.2', r) for r in ('^1.2', '^1.5', '^2', '~1.4', '~1.3', '~1.4.3', '^1.4.2')]",
    "[matches('1.4.2', r) for r in ('>=1,<2', '>=1, <1.4', '', '>1.4.1,<=1.4.2')]",
    "[matches('2.0-rc1', r) for r in ('>=1', '2.0-rc1', '')]",
    "matches('1.5', '^1.5.0')",
    "newest(['1.2', '1.10', '1.9'])",
    "newest(['1.2', '2.0-rc', '1.3'])",
    "newest(['1.2', '2.0-rc', '1.3'], labels=True)",
    "newest(['1.2', '2.0', '1.3'], '<2')",
    "newest(['1.2'], '>2')",
    "newest(['1.2', '2.0-rc', '1.3'], '<1', True)",
    "newest([])",
    "[raised('1.2.3', p) for p in ('major', 'minor', 'patch')]",
    "[raised('1.2.3-rc1', p) for p in ('major', 'minor', 'patch')]",
    "(raised('1.2.3'), raised('1.2.3', by=2), raised('1.2.3-a', 'patch', 2), raised('0.9', 'minor', 3))",
    "resolve({'a': '>=1'}, {'a': {'1.0': {}, '1.5': {'b': '<2'}}, 'b': {'1.0': {}, '2.0': {}}})",
    "resolve({'a': '^1', 'b': '>=1'}, {'a': {'1.1': {'b': '~1.0'}}, 'b': {'1.0': {}, '1.0.5': {}, '1.2': {}}})",
    "resolve({'a': '>2'}, {'a': {'1': {}}})",
    "resolve({'a': '1'}, {'a': {'1': {'zz': '1'}}})",
    "resolve({}, {})",
    "resolve({'a': '1', 'b': '1'}, {'a': {'1': {'b': '1'}}, 'b': {'1': {'a': '1'}}})",
    "resolve({'c': '>=1', 'a': '>=1'}, {'a': {'1': {}, '2': {'c': '<3'}}, 'c': {'2': {}, '3': {}, '2.5': {}}})",
)  # fmt: skip
NAMES = {
    "parse": ("split_version", "read"),
    "compare": ("order_of", "versus"),
    "matches": ("satisfies", "allowed"),
    "newest": ("latest", "pick"),
    "raised": ("bump", "next_version"),
    "resolve": ("plan", "choose"),
}
