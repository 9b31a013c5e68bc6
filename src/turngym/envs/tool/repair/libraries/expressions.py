"""Arithmetic on whole numbers in texts: tokens, a tree, its value, and a shorter tree."""

from __future__ import annotations

from typing import Any

Tree = Any
RANKS = {"+": 1, "-": 1, "*": 2, "/": 2, "^": 3}


def tokens(text: str) -> list[str]:
    """Numbers, names, operators and parentheses of a text.

    Raises:
        ValueError: for a character that belongs to none of them.
    """
    found: list[str] = []
    position = 0
    while position < len(text):
        letter = text[position]
        if letter.isspace():
            position += 1
        elif letter.isalnum():
            end = position + 1
            while end < len(text) and text[end].isalnum() and text[end].isdigit() == letter.isdigit():
                end += 1
            found.append(text[position:end])
            position = end
        elif letter in RANKS or letter in "()":
            found.append(letter)
            position += 1
        else:
            raise ValueError("unexpected character")
    return found


def parse(text: str) -> Tree:
    """The tree of an expression: a number, a name, or (operator, left, right). A sign gives ("neg", inner).

    Operators of one rank group from the left, "^" from the right; "^" binds stronger than a sign.

    Raises:
        ValueError: for what is no expression.
    """
    rest = tokens(text)
    tree = _binary(rest, 1)
    if rest:
        raise ValueError("unexpected end of the expression")
    return tree


def _binary(rest: list[str], rank: int) -> Tree:
    left = _unary(rest)
    while rest and RANKS.get(rest[0], 0) >= rank:
        operator = rest.pop(0)
        step = 0 if operator == "^" else 1
        right = _binary(rest, RANKS[operator] + step)
        left = (operator, left, right)
    return left


def _unary(rest: list[str]) -> Tree:
    if not rest:
        raise ValueError("something is missing")
    token = rest.pop(0)
    if token == "-":
        return ("neg", _binary(rest, RANKS["^"]))
    if token == "(":
        inner = _binary(rest, 1)
        if not rest or rest.pop(0) != ")":
            raise ValueError("a parenthesis is not closed")
        return inner
    if token in RANKS or token == ")":
        raise ValueError("an operator has nothing to work on")
    return int(token) if token.isdigit() else token


def evaluate(tree: Tree, values: dict[str, int] | None = None) -> int:  # noqa: PLR0911 - one for each operator
    """The value of a tree; division rounds towards minus infinity.

    Raises:
        KeyError: for a name without a value.
        ZeroDivisionError: for a division by 0.
    """
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return (values or {})[tree]
    operator, *parts = tree
    numbers = [evaluate(part, values) for part in parts]
    if operator == "neg":
        return -numbers[0]
    left, right = numbers
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if operator == "/":
        return left // right
    return int(left**right)


def simplify(tree: Tree) -> Tree:  # noqa: PLR0911 - one for each rule
    """A tree of equal value: constants are worked out, and x + 0, x * 1, x * 0 and x - x become shorter."""
    if not isinstance(tree, tuple):
        return tree
    operator, *parts = tree
    parts = [simplify(part) for part in parts]
    if all(isinstance(part, int) for part in parts) and not (operator == "/" and parts[1] == 0):
        return evaluate((operator, *parts))
    if operator == "neg":
        return ("neg", parts[0])
    left, right = parts
    if operator in "+-" and right == 0:
        return left
    if operator == "+" and left == 0:
        return right
    if operator == "-" and left == right:
        return 0
    if operator == "*" and (left == 0 or right == 0):
        return 0
    if operator in "*/^" and right == 1:
        return left
    if operator == "*" and left == 1:
        return right
    return (operator, left, right)


def show(tree: Tree, outer: int = 0) -> str:
    """The text of a tree with as few parentheses as its ranks need."""
    if not isinstance(tree, tuple):
        return str(tree)
    if tree[0] == "neg":
        return f"-{show(tree[1], 3)}"
    operator, left, right = tree
    rank = RANKS[operator]
    text = f"{show(left, rank)} {operator} {show(right, rank + 1)}"
    return f"({text})" if rank < outer else text


PROBES = (
    "tokens('12+ab*(3 - x)')",
    "tokens('2x10')",
    "tokens(' ')",
    "tokens('1 $ 2')",
    "parse('1 + 2 * 3')",
    "parse('(1 + 2) * 3')",
    "parse('8 - 3 - 2')",
    "parse('2 ^ 3 ^ 2')",
    "parse('-2 ^ 2')",
    "parse('2 * -x')",
    "parse('1 + 2 - 3 * 4 / 5')",
    "parse('1 +')",
    "parse('(1')",
    "parse('1)')",
    "parse('* 2')",
    "parse('')",
    "evaluate(parse('7 / 2 * 2 + 1'))",
    "evaluate(parse('-7 / 2'))",
    "evaluate(parse('2 ^ 3 ^ 2'))",
    "evaluate(parse('-(3 - 10)'))",
    "evaluate(parse('a * a - b'), {'a': 5, 'b': 3})",
    "evaluate(parse('a'))",
    "evaluate(parse('1 / 0'))",
    "simplify(parse('x * 1 + 0'))",
    "simplify(parse('0 + x * (2 - 2)'))",
    "simplify(parse('x - x + 2 * 3'))",
    "simplify(parse('1 * y ^ 1'))",
    "simplify(parse('x / 1 - 0'))",
    "simplify(parse('0 * x + y'))",
    "simplify(parse('-x'))",
    "simplify(parse('1 / 0'))",
    "simplify(parse('-(2 + 3) * z'))",
    "[show(parse(t)) for t in ('1+2*3', '(1+2)*3', '1-(2-3)', '8-3-2', '-(1+2)', '2*(3/4)')]",
    "show(parse('-x * y'))",
)
NAMES = {
    "tokens": ("lex", "split_tokens"),
    "parse": ("read", "to_tree"),
    "evaluate": ("calculate", "value_of"),
    "simplify": ("reduce_tree", "fold"),
    "show": ("render", "to_text"),
}
