"""Bugs that people make, planted in a syntax tree: one small change at one place.

`sites` numbers every place of a module where a bug can be planted, and `planted` plants one. The numbers depend on the
code alone, so that (library, number) names a bug for good.

The kinds are the classic mutation operators of DeMillo, Lipton and Sayward (1978), "Hints on Test Data Selection",
with some that Python's users know: a lost `await`, another default, swapped arguments.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.Div: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "ljust": "rjust", "rjust": "ljust"}


@dataclass(frozen=True, slots=True)
class Site:
    """One place where a bug can be planted."""

    kind: str
    function: str
    "where it is: `function`, or `Class.method`"


def sites(tree: ast.Module) -> list[Site]:
    """Every place, in the order of the code."""
    planter = _Planter(target=None)
    planter.visit(copy.deepcopy(tree))
    return planter.sites


def planted(tree: ast.Module, number: int) -> ast.Module:
    """A copy with the bug of that number.

    Raises:
        IndexError: there are fewer.
    """
    planter = _Planter(target=number)
    mutant: ast.Module = planter.visit(copy.deepcopy(tree))
    if number >= len(planter.sites):
        raise IndexError(f"there are {len(planter.sites)} places, no number {number}")
    return ast.fix_missing_locations(mutant)


class _Planter(ast.NodeTransformer):
    """Counts the places it passes; at the one with the number `target` it makes the change."""

    def __init__(self, target: int | None) -> None:
        self.target = target
        self.sites: list[Site] = []
        self._where: list[str] = []

    def _offer(self, kind: str, node: ast.AST, *changed: ast.AST) -> ast.AST:
        """`node`, or the one of `changed` whose turn it is."""
        for other in changed:
            if len(self.sites) == self.target:
                node = other
            self.sites.append(Site(kind, ".".join(self._where)))
        return node

    # ------------------------------------------------------------------ where to look

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Look at the body."""
        return self._block(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Look at the defaults and the body; annotations and docstrings hold no bugs."""
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """Likewise."""
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._where.append(node.name)
        node.args.defaults = [self._default(default) for default in node.args.defaults]
        self._where.pop()
        return self._block(node)

    def _block(self, node: Any) -> ast.AST:
        self._where.append(node.name)
        node.body = [self._statement(line) for line in node.body]
        self._where.pop()
        changed: ast.AST = node
        return changed

    def _statement(self, line: ast.stmt) -> Any:
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
            return line
        return self.visit(line)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Look at the value alone."""
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        """What is said in an error is no behaviour."""
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Widths and signs in a format are left alone."""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                part.value = self.visit(part.value)
        return node

    def _default(self, node: ast.expr) -> Any:
        if not isinstance(node, ast.Constant) or node.value is None:
            return node
        match node.value:
            case bool():
                others: Iterable[Any] = (not node.value,)
            case int():
                others = (node.value + 1, node.value - 1)
            case str() if node.value:
                others = ("",)
            case _:
                others = ()
        return self._offer("default", node, *(ast.Constant(other) for other in others))

    # ------------------------------------------------------------------ what to change

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Another comparison."""
        self.generic_visit(node)
        first, *rest = node.ops
        others = _COMPARISONS.get(type(first), ())
        return self._offer(
            "comparison", node, *(ast.Compare(node.left, [op(), *rest], node.comparators) for op in others)
        )

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Another operator."""
        self.generic_visit(node)
        other = _ARITHMETIC.get(type(node.op))
        return (
            node
            if other is None
            else self._offer("operator", node, ast.BinOp(node.left, other(), node.right))
        )

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """Another operator, or an assignment without one."""
        self.generic_visit(node)
        others: list[ast.stmt] = [ast.Assign([node.target], node.value)]
        if type(node.op) in _ARITHMETIC:
            others.append(ast.AugAssign(node.target, _ARITHMETIC[type(node.op)](), node.value))
        return self._offer("update", node, *others)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """And for or, and one condition less."""
        self.generic_visit(node)
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        shorter = [_joined(node.op, node.values[:i] + node.values[i + 1 :]) for i in range(len(node.values))]
        return self._offer("logic", node, ast.BoolOp(other, node.values), *shorter)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """A sign or a `not` is lost."""
        self.generic_visit(node)
        if isinstance(node.op, ast.Not | ast.USub):
            return self._offer("sign", node, node.operand)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """One more, one less, or the other truth."""
        if isinstance(node.value, bool):
            return self._offer("constant", node, ast.Constant(not node.value))
        if isinstance(node.value, int):
            return self._offer("off by one", node, ast.Constant(node.value + 1), ast.Constant(node.value - 1))
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Arguments are swapped; smallest for largest."""
        self.generic_visit(node)
        changed: list[ast.AST] = []
        if len(node.args) >= 2 and not any(isinstance(a, ast.Starred) for a in node.args):
            first, second, *rest = node.args
            changed.append(ast.Call(node.func, [second, first, *rest], node.keywords))
        if isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            other: ast.expr = ast.Name(_FUNCTIONS[node.func.id], ast.Load())
            changed.append(ast.Call(other, node.args, node.keywords))
        if isinstance(node.func, ast.Attribute) and node.func.attr in _FUNCTIONS:
            other = ast.Attribute(node.func.value, _FUNCTIONS[node.func.attr], ast.Load())
            changed.append(ast.Call(other, node.args, node.keywords))
        return self._offer("call", node, *changed)

    def visit_Await(self, node: ast.Await) -> ast.AST:
        """It is not waited for."""
        self.generic_visit(node)
        return self._offer("lost await", node, node.value)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """A call that was made for its effect is forgotten."""
        self.generic_visit(node)
        if isinstance(node.value, ast.Call) or (
            isinstance(node.value, ast.Await) and isinstance(node.value.value, ast.Call)
        ):
            return self._offer("forgotten call", node, ast.Pass())
        return node

    def visit_Break(self, node: ast.Break) -> ast.AST:
        """The loop goes on."""
        return self._offer("loop", node, ast.Continue())

    def visit_Continue(self, node: ast.Continue) -> ast.AST:
        """The loop ends."""
        return self._offer("loop", node, ast.Break())


def _joined(operator: ast.boolop, values: list[ast.expr]) -> ast.expr:
    return values[0] if len(values) == 1 else ast.BoolOp(operator, values)
