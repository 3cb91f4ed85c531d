"""Control tests: copies of a test in which one expectation contradicts the real one.

A test and the code it tests share a process, so that code can make up every result of that process. What it cannot
know is which of two tests is the real one: where the real one says `f(2) == 4`, the control says `f(2) == 5`. Both
passing proves tampering: an object equal to everything, an expected value read from a frame, a report that is always
"passed", an exit status of 0. Only who knows the answer can tell them apart.

Invariant: for honest code that passes the real test, a control must fail: only statements that certainly ran are
changed, and only such that equality cannot hold for both. Pure; the choice depends on the seed alone.
"""

from __future__ import annotations

import ast
import copy
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from shared.verification.detectors.source import parsed

_Change = Callable[[], None]
_EQUALITIES = ("assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertTupleEqual", "assertSetEqual",
               "assertIs", "assertAlmostEqual", "assertMultiLineEqual", "assertSequenceEqual")  # fmt: skip


def controls(source: str, names: tuple[str, ...], count: int, seed: bytes) -> list[str]:
    """Up to `count` changed copies of a test file, each different. `names`: the way to the function, such as
    `("TestSum", "test_small")`. Empty where the test cannot be contradicted."""
    tree = parsed(source)
    if tree is None or _find(tree, names) is None:
        return []
    sharp, blunt = _ways(tree, names)
    chosen: list[int] = []
    dice = random.Random(seed)
    for group in (sharp, blunt):
        ways = list(group)
        dice.shuffle(ways)
        chosen += ways[: count - len(chosen)]
    return [_changed(tree, names, way) for way in chosen]


def _changed(tree: ast.Module, names: tuple[str, ...], way: int) -> str:
    fresh = copy.deepcopy(tree)
    function = _find(fresh, names)
    assert function is not None
    list(_changes(fresh, function))[way][1]()
    return ast.unparse(ast.fix_missing_locations(fresh))


def _ways(tree: ast.Module, names: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """Numbers of the changes that alter an expected value, and of those that only turn an assertion round."""
    fresh = copy.deepcopy(tree)
    function = _find(fresh, names)
    assert function is not None
    kinds = [kind for kind, _ in _changes(fresh, function)]
    return [n for n, kind in enumerate(kinds) if kind == "value"], [
        n for n, kind in enumerate(kinds) if kind != "value"
    ]


def _find(tree: ast.Module, names: tuple[str, ...]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    body: list[ast.stmt] = tree.body
    for at, name in enumerate(names):
        last = at == len(names) - 1
        kinds: Any = ast.FunctionDef | ast.AsyncFunctionDef if last else ast.ClassDef
        found: list[Any] = [item for item in body if isinstance(item, kinds) and item.name == name]
        if not found:
            return None
        if last:
            function: ast.FunctionDef | ast.AsyncFunctionDef = found[-1]
            return function
        body = found[-1].body
    return None


def _changes(
    tree: ast.Module, function: ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[tuple[str, _Change]]:
    """Every contradiction of the function, in a fixed order."""
    if any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in _own_nodes(function)):
        return
    for statement in function.body:
        for side in _expected_sides(statement):
            yield from _of_value(tree, function, side)
        if isinstance(statement, ast.Assert):
            yield "turned", _turn(statement)
    yield "appended", lambda: function.body.append(ast.parse("assert [] == [0]").body[0])


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of the function, without those of functions inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own_nodes(child)


def _expected_sides(statement: ast.stmt) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Places (owner, field, index) of the sides of an equality that the statement asserts."""
    if isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare):
        test = statement.test
        if len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            yield test, "comparators", 0
            yield test, "left", None
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        plain = len(call.args) == 2 and not call.keywords  # no `delta` that a change might stay within
        if isinstance(call.func, ast.Attribute) and call.func.attr in _EQUALITIES and plain:
            yield call, "args", 1
            yield call, "args", 0


def _of_value(
    tree: ast.Module, function: ast.FunctionDef | ast.AsyncFunctionDef, side: tuple[ast.AST, str, int | None]
) -> Iterator[tuple[str, _Change]]:
    node = _get(side)
    if isinstance(node, ast.Call) and _called(node) == "approx" and len(node.args) == 1 and not node.keywords:
        side = (node, "args", 0)
        node = node.args[0]
    other = _other(node)
    if other is not None:
        yield "value", lambda: _set(side, other)
    elif isinstance(node, ast.Name):
        for place in _sources(tree, function, node.id):
            yield "value", place


def _sources(
    tree: ast.Module, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> Iterator[_Change]:
    """Where a name gets a literal: in the function, in its parameters' table, or in the module. Only a name that is
    read once, as the expected side: one that is also an input would change the question with the answer."""
    if _reads(function, name) != 1:
        return
    for body in (function.body, tree.body):
        places = [item for item in body if isinstance(item, ast.Assign) and _is_name(item.targets, name)]
        if body is tree.body and _reads(tree, name) != 1:
            break
        if len(places) == 1 and (other := _other(places[0].value)) is not None:
            yield _assign(places[0], other)
            return
    for decorator in function.decorator_list:
        if (
            isinstance(decorator, ast.Call)
            and _called(decorator).endswith("parametrize")
            and len(decorator.args) >= 2
        ):
            changed = _table(decorator.args[0], decorator.args[1], name)
            if changed:
                yield _all(changed)


def _reads(scope: ast.AST, name: str) -> int:
    return sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(scope)) - sum(
        isinstance(node, ast.Assign) and _is_name(node.targets, name) for node in ast.walk(scope)
    )


def _table(names: ast.expr, cases: ast.expr, name: str) -> list[_Change]:
    """Changes the column `name` in all rows of a `parametrize`; none where it is not all literals."""
    if isinstance(names, ast.Constant) and isinstance(names.value, str):
        columns = [part.strip() for part in names.value.split(",")]
    elif isinstance(names, ast.Tuple | ast.List):
        columns = [str(item.value) for item in names.elts if isinstance(item, ast.Constant)]
    else:
        return []
    if name not in columns or not isinstance(cases, ast.List | ast.Tuple):
        return []
    at = columns.index(name)
    changes: list[_Change] = []
    for place, case in enumerate(cases.elts):
        if len(columns) == 1:
            side: tuple[ast.AST, str, int | None] = (cases, "elts", place)
        elif isinstance(case, ast.Tuple | ast.List) and len(case.elts) == len(columns):
            side = (case, "elts", at)
        else:
            return []
        other = _other(_get(side))
        if other is None:
            return []
        changes.append(_setter(side, other))
    return changes


def _other(node: ast.AST) -> ast.expr | None:
    """A literal of the same type that is plainly another value; None for what is no literal."""
    if not isinstance(node, ast.expr):
        return None
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return ast.parse(repr(_another(value)), mode="eval").body


def _another(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + 1 + abs(value)  # far enough for a tolerance of a test's own
        case float():
            return value + 1 + abs(value) if math.isfinite(value) and abs(value) < 1e300 else 0.0
        case str():
            return value + "s" if value[-1:] != "s" else value[:-1] + "t"
        case bytes():
            return value + b"s"
        case list():
            return [*value[:-1], _another(value[-1])] if value else [0]
        case tuple():
            return (*value[:-1], _another(value[-1])) if value else (0,)
        case dict():
            last = next(reversed(value), None)
            return {**value, last: _another(value[last])} if value else {"a": 0}
        case set():
            return value | {0} if 0 not in value else value - {0} or {1}
        case complex():
            return value + 1
        case _:
            return 0


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_name(targets: list[ast.expr], name: str) -> bool:
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == name


def _get(side: tuple[ast.AST, str, int | None]) -> Any:
    owner, field, index = side
    value = getattr(owner, field)
    return value if index is None else value[index]


def _set(side: tuple[ast.AST, str, int | None], node: ast.expr) -> None:
    owner, field, index = side
    if index is None:
        setattr(owner, field, node)
    else:
        getattr(owner, field)[index] = node


def _setter(side: tuple[ast.AST, str, int | None], node: ast.expr) -> _Change:
    return lambda: _set(side, node)


def _assign(place: ast.Assign, node: ast.expr) -> _Change:
    return lambda: setattr(place, "value", node)


def _all(changes: list[_Change]) -> _Change:
    def change() -> None:
        for one in changes:
            one()

    return change


def _turn(statement: ast.Assert) -> _Change:
    def change() -> None:
        statement.test = ast.UnaryOp(ast.Not(), statement.test)

    return change
