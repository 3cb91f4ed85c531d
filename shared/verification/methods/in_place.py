"""What of a test still has to hold where a candidate's changes of its arguments do not come back.

A candidate that empties the list it was given has `sorted(items)`, `sum(items)` and `len(items)` agree with what it
returns for nothing. So a test that passed while arguments changed is run again with its arguments left alone. What the
test says of the arguments themselves (`assert items == [1, 2, 3]` after a sort in place) cannot hold then and is left
out; what it says of returned values stays.

Invariant: only assertions that read nothing the candidate returned are left out, or that compare by identity: an
argument that was returned is another object here. Pure.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from shared.verification.detectors.source import parsed

Function = ast.FunctionDef | ast.AsyncFunctionDef
_MAX_ROUNDS = 20
_FILLING = ("append", "appendleft", "add", "extend", "insert", "update", "setdefault", "put")


def without_states(test: str, entries: Iterable[str], most: int) -> str:
    """The test's source, without assertions of what the candidate did to its arguments.

    `entries`: the names under which the test knows the candidate, the first parameter of its functions aside. `most`:
    characters up to which a test is read; a longer one comes back as it is.
    """
    tree = parsed(test, most)
    if tree is None:
        return test
    names = set(entries)
    for node in ast.walk(tree):
        if isinstance(node, Function) and node.name == "check" and node.args.args:
            names.add(node.args.args[0].arg)
    return ast.unparse(ast.fix_missing_locations(_Left(_derived(tree, names)).visit(tree)))


def _derived(tree: ast.AST, names: set[str]) -> set[str]:
    """Names that hold what the candidate returned, or something made of it, and functions that return such."""
    known = set(names)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, Function)}
    for _ in range(_MAX_ROUNDS):
        before = len(known)
        for node in ast.walk(tree):
            known |= _bound(node, known)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
                known |= _handed_on(node, functions[node.func.id], known)
        if len(known) == before:
            break
    return known


def _bound(node: ast.AST, known: set[str]) -> set[str]:
    match node:
        case ast.Assign(targets=targets, value=value) if _reads(value, known):
            return {name for target in targets for name in _stored(target)}
        case (
            ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.AugAssign(target=target, value=value)
            | ast.NamedExpr(target=target, value=value)
            | ast.For(target=target, iter=value)
            | ast.AsyncFor(target=target, iter=value)
            | ast.comprehension(target=target, iter=value)
        ) if _reads(value, known):
            return set(_stored(target))
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attribute), args=arguments) if (
            attribute in _FILLING and any(_reads(argument, known) for argument in arguments)
        ):
            return {name}  # `got.append(candidate(x))`
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name != "check" and any(
            isinstance(part, ast.Return | ast.Yield | ast.YieldFrom)
            and part.value is not None
            and _reads(part.value, known)
            for part in ast.walk(node)
        ):
            return {name}
    return set()


def _handed_on(call: ast.Call, function: Function, known: set[str]) -> set[str]:
    """Parameters of a helper of the test's that are given such a value, or the candidate itself."""
    places = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
    found = {name for name, value in zip(places, call.args, strict=False) if _reads(value, known)}
    return found | {item.arg for item in call.keywords if item.arg and _reads(item.value, known)}


def _reads(node: ast.AST, known: set[str]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in known for part in ast.walk(node))


def _stored(target: ast.AST) -> list[str]:
    """`a, b = …` binds both; `seen[x] = …` and `box.x = …` make their owner one of them."""
    if isinstance(target, ast.Subscript | ast.Attribute):
        return _stored(target.value)
    if isinstance(target, ast.Tuple | ast.List):
        return [name for item in target.elts for name in _stored(item)]
    if isinstance(target, ast.Starred):
        return _stored(target.value)
    return [target.id] if isinstance(target, ast.Name) else []


class _Left(ast.NodeTransformer):
    """Takes out assertions of states."""

    def __init__(self, derived: set[str]) -> None:
        self._derived = derived

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        return node if self._of_value(node.test) else ast.Pass()

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        call = node.value
        if isinstance(call, ast.Call):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if str(name).lower().startswith("assert") and not self._of_value(call):
                return ast.Pass()
        return node

    def _of_value(self, node: ast.AST) -> bool:
        identity = isinstance(node, ast.Compare) and all(
            isinstance(op, ast.Is | ast.IsNot) for op in node.ops
        )
        constant = isinstance(node, ast.Compare) and isinstance(node.comparators[-1], ast.Constant)
        return _reads(node, self._derived) and (constant or not identity)
