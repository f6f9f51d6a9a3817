"""Mutants of a Python file: small faults put into its source, each off until its number is active.

All mutants that were drawn stand in one source: `a < b` becomes `a <= b if on(17) else a < b`. So a
process that has imported the package and its tests once can try any of them.

Left out: docstrings, messages (raise, warn, f-strings), texts, type annotations and `__repr__`.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, cast

__all__ = ["Mutant", "Mutator", "mutants_of", "with_mutants"]

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
# An error of these at once, whatever the tests: such mutants would only raise the share.
NOT_SWAPPED = {"isinstance", "issubclass", "hasattr", "getattr", "setattr", "cast"}


@dataclass(frozen=True)
class Mutant:
    """One small fault: where it is, and whether it acts when its module is imported."""

    file: str
    line: int
    column: int
    change: str
    at_import: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.change}"


@dataclass
class Mutator(ast.NodeTransformer):
    """Walk a file; list its mutants, and put those with a number into the tree."""

    file: str
    numbers: dict[Mutant, int] = field(default_factory=dict)
    found: list[Mutant] = field(default_factory=list)
    functions: int = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name == "__repr__":
            return node
        node.decorator_list = self._all(node.decorator_list)
        node.args.defaults = self._all(node.args.defaults)
        node.args.kw_defaults = self._all(node.args.kw_defaults)
        self.functions += 1
        node.body = self._all(node.body)
        self.functions -= 1
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self.visit(node.value) if node.value else None
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        node.guard = self.visit(node.guard) if node.guard else None
        node.body = self._all(node.body)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        changes = []
        for index, operator in enumerate(node.ops):
            for other in COMPARISONS[type(operator)]:
                changes.append((_named(operator, other), _with_comparison(index, other)))
        return self._chosen(node, changes)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if any(_is_text(operand) for operand in (node.left, node.right)):
            return self.generic_visit(node)
        if isinstance(node.op, ast.BitOr) and not self.functions:  # a union of types
            return node
        other = ARITHMETIC[type(node.op)]
        return self._chosen(node, [(_named(node.op, other), _with_operator(other))])

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        other = ARITHMETIC[type(node.op)]
        mutant = self._mutant(node, _named(node.op, other) + " in place")
        self.generic_visit(node)
        if mutant not in self.numbers:
            return node
        return ast.If(self._on(mutant), [cast(ast.stmt, _with_operator(other)(node))], [node])

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        return self._chosen(node, [(_named(node.op, other), _with_operator(other))])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if not isinstance(node.op, ast.Not | ast.USub | ast.Invert):
            return self.generic_visit(node)
        return self._chosen(node, [(f"{type(node.op).__name__} left out", lambda n: n.operand)])

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        if isinstance(value, bool):
            return self._chosen(node, [(f"{not value}", lambda n: ast.Constant(not n.value))])
        if not isinstance(value, int | float):
            return node
        return self._chosen(
            node,
            [
                (f"{value} + 1", lambda n: ast.Constant(n.value + 1)),
                (f"{value} - 1", lambda n: ast.Constant(n.value - 1)),
            ],
        )

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is None or (
            isinstance(node.value, ast.Constant) and node.value.value is None
        ):
            return node
        mutant = self._mutant(node, "return None")
        self.generic_visit(node)
        if mutant in self.numbers:
            node.value = ast.IfExp(self._on(mutant), ast.Constant(None), node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name == "warn":
            return node
        first = node.args[:2]
        swapped = (
            len(first) == 2
            and name not in NOT_SWAPPED
            and not any(isinstance(argument, ast.Starred) for argument in first)
            and ast.dump(first[0]) != ast.dump(first[1])
        )
        return self._chosen(node, [("first arguments swapped", _swapped)] if swapped else [])

    def _all(self, nodes: Sequence[ast.AST | None]) -> list[Any]:
        return [self.visit(node) if node is not None else None for node in nodes]

    def _mutant(self, node: ast.expr | ast.stmt, change: str) -> Mutant:
        mutant = Mutant(self.file, node.lineno, node.col_offset, change, not self.functions)
        self.found.append(mutant)
        return mutant

    def _on(self, mutant: Mutant) -> ast.expr:
        return ast.parse(f"mutants_on.on({self.numbers[mutant]})", mode="eval").body

    def _chosen(self, node: ast.expr, changes: list[tuple[str, Callable[..., Any]]]) -> ast.expr:
        """The node, or its mutants while they are active and else the node."""
        listed = [(self._mutant(node, name), change) for name, change in changes]
        self.generic_visit(node)
        kept = node
        for mutant, change in listed:
            if mutant in self.numbers:
                kept = ast.IfExp(self._on(mutant), change(deepcopy(node)), kept)
        return kept


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All mutants of a file, in the order of its lines."""
    mutator = Mutator(file)
    mutator.visit(ast.parse(source))
    return list(dict.fromkeys(mutator.found))


def with_mutants(file: str, source: str, numbers: dict[Mutant, int]) -> str:
    """The source with the numbered mutants of this file in it, all of them off.

    Where one acts at import, every function says that it was reached.
    """
    own = {mutant: number for mutant, number in numbers.items() if mutant.file == file}
    tree = Mutator(file, own).visit(ast.parse(source))
    acting = [number for mutant, number in own.items() if mutant.at_import]
    if acting:
        for node in _functions(tree):
            body = 1 if ast.get_docstring(node) is not None else 0
            node.body.insert(body, ast.parse(f"mutants_on.reach({acting})").body[0])
    first = sum(
        isinstance(node, ast.Expr) or getattr(node, "module", "") == "__future__"
        for node in tree.body[:2]
    )
    tree.body.insert(first, ast.parse("import mutants_on").body[0])
    return ast.unparse(ast.fix_missing_locations(tree))


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def _named(operator: ast.AST, other: type) -> str:
    return f"{type(operator).__name__} to {other.__name__}"


def _with_comparison(index: int, other: type[ast.cmpop]) -> Callable[[ast.Compare], ast.Compare]:
    def change(node: ast.Compare) -> ast.Compare:
        node.ops[index] = other()
        return node

    return change


def _with_operator(other: type) -> Callable[[ast.AST], ast.AST]:
    def change(node: ast.AST) -> ast.AST:
        changed: Any = deepcopy(node)
        changed.op = other()
        return changed

    return change


def _swapped(node: ast.Call) -> ast.Call:
    node.args[:2] = node.args[1], node.args[0]
    return node
