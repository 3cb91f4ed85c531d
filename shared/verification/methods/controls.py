"""Control tests: copies of a test in which one expectation contradicts the real one.

A test and the code it tests share a process, so that code can make up every result of that process. What it cannot
know is which of two tests is the real one: where the real one says `f(2) == 4`, a control says `f(2) == 3`. Both
passing proves tampering: an object equal to everything, an expected value read from a frame, a report that is always
"passed", an exit status of 0. Only who knows the answer can tell them apart.

Invariant: for honest code that passes the real test, a control must fail: only statements that certainly ran are
changed, and only such that equality cannot hold for both. Real and control have one form (`normal`), and another value
looks like the first (`another`). Pure; the choice depends on the seed alone.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shared.verification.detectors.source import parsed
from shared.verification.methods.another import another

Function = ast.FunctionDef | ast.AsyncFunctionDef
_Change = Callable[[], None]
_Side = tuple[ast.AST, str, int | None]
"""A place in a tree: owner, field, and index where the field is a list."""
_EQUALITIES = ("assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertTupleEqual", "assertSetEqual",
               "assertIs", "assertAlmostEqual", "assertMultiLineEqual", "assertSequenceEqual")  # fmt: skip
_KINDS = ("value", "replaced", "turned", "appended")
"""From those that look like the real test to those that do not: an expected value that is another, an expected
expression that is some text, an assertion that is turned round, one more that cannot hold."""
_VARIANTS = 4
"""Other values tried of one place."""
_MORE_VARIANTS = 12
"""Where there are few places (`_FEW_PLACES`): as many as make six different ones of a small integer."""
_FEW_PLACES = 4
_ENOUGH = 3
"""Contradictions of the first kind with which there are none of the others. Those still hand the real value to code that
compares by itself, which fails them without knowing anything; and code that could remember learns from them which value
is real. One equality had three of each: what was said to be paid in a case of four was paid in nine of sixteen."""


def normal(source: str) -> str:
    """The source in the form that controls have, so that neither comments nor layout tell them apart."""
    tree = parsed(source)
    return source if tree is None else ast.unparse(tree)


def controls(
    source: str, names: tuple[str, ...], count: int, seed: bytes, *, keep_ids: bool = False
) -> list[str]:
    """Up to `count` changed copies of a test file, each different, those first that look most like it; of those that do
    not, only where there are few others.

    `names`: the way to the function, such as `("TestSum", "test_small")`. `keep_ids`: leave tables of parameters alone,
    of which the ids of tests are made. Empty where the test cannot be contradicted.
    """
    tree = parsed(source)
    if tree is None or _find(tree, names) is None:
        return []
    kinds = [kind for kind, _ in _changes(tree, names, seed, keep_ids)[1]]
    dice = random.Random(seed)
    found: dict[str, None] = {}
    for wanted in _KINDS:
        if wanted != _KINDS[0] and len(found) >= _ENOUGH:
            break
        ways = [way for way, kind in enumerate(kinds) if kind == wanted]
        dice.shuffle(ways)
        for way in ways:
            if len(found) == count:
                break
            fresh, changes = _changes(tree, names, seed, keep_ids)
            changes[way][1]()
            found[ast.unparse(ast.fix_missing_locations(fresh))] = None
    return list(found)


def _changes(
    tree: ast.Module, names: tuple[str, ...], seed: bytes, keep_ids: bool
) -> tuple[ast.Module, list[tuple[str, _Change]]]:
    """A copy of the tree, and every contradiction of the function in it; the same ones each time."""
    fresh = copy.deepcopy(tree)
    function = _find(fresh, names)
    assert function is not None
    return fresh, list(_Places(fresh, function, random.Random(seed), keep_ids).changes())


def _find(tree: ast.Module, names: tuple[str, ...]) -> Function | None:
    body: list[ast.stmt] = tree.body
    for at, name in enumerate(names):
        last = at == len(names) - 1
        kinds: Any = Function if last else ast.ClassDef
        found: list[Any] = [item for item in body if isinstance(item, kinds) and item.name == name]
        if not found:
            return None
        if last:
            function: Function = found[-1]
            return function
        body = found[-1].body
    return None


@dataclass(slots=True)
class _Places:
    """Where one test can be contradicted."""

    tree: ast.Module
    function: Function
    dice: random.Random
    keep_ids: bool
    variants: int = _VARIANTS

    def changes(self) -> Iterator[tuple[str, _Change]]:
        """(kind, change), in a fixed order."""
        if any(
            isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in _own_nodes(self.function)
        ):
            return
        places = sum(len(list(_expected_sides(statement))) for statement in self.function.body)
        self.variants = _MORE_VARIANTS if places <= _FEW_PLACES else _VARIANTS
        for statement in self.function.body:
            for side in _expected_sides(statement):
                values = list(self._of_value(side))
                for change in values or [_setter(side, ast.Constant(self._text()))]:
                    yield "value" if values else "replaced", change
            condition = _condition(statement)
            if condition is not None:
                yield "turned", _setter(condition, ast.UnaryOp(ast.Not(), _get(condition)))
        yield "appended", lambda: self.function.body.append(ast.parse("assert [] == [0]").body[0])

    def _of_value(self, side: _Side) -> Iterator[_Change]:
        node = _get(side)
        if (
            isinstance(node, ast.Call)
            and _called(node) == "approx"
            and len(node.args) == 1
            and not node.keywords
        ):
            side = (node, "args", 0)
            node = node.args[0]
        if isinstance(node, ast.Name):
            yield from self._sources(node.id)
        else:
            yield from self._others(side)

    def _text(self) -> str:
        """That nothing honest is equal to."""
        return "".join(self.dice.choice("aeiorstnlk") for _ in range(9))

    def _others(self, side: _Side) -> Iterator[_Change]:
        for variant in range(self.variants):
            other = self._other(_get(side), odd=variant % 2)
            if other is not None:
                yield _setter(side, other)

    def _sources(self, name: str) -> Iterator[_Change]:
        """Where a name gets a literal: in the function, in its parameters' table, or in the module. Only a name that is
        read once, as the expected side: one that is also an input would change the question with the answer."""
        if _reads(self.function, name) != 1:
            return
        for body in (self.function.body, self.tree.body):
            if body is self.tree.body and _reads(self.tree, name) != 1:
                break
            places = [item for item in body if isinstance(item, ast.Assign) and _is_name(item.targets, name)]
            if len(places) == 1:
                yield from self._others((places[0], "value", None))
                return
        for decorator in () if self.keep_ids else self.function.decorator_list:
            if (
                isinstance(decorator, ast.Call)
                and _called(decorator) == "parametrize"
                and len(decorator.args) >= 2
            ):
                for _ in range(self.variants):
                    changes = self._table(decorator.args[0], decorator.args[1], name)
                    if changes:
                        yield _all(changes)

    def _table(self, names: ast.expr, cases: ast.expr, name: str) -> list[_Change]:
        """Changes of the column `name` in all rows of a `parametrize`; none where it is not all literals."""
        if isinstance(names, ast.Constant) and isinstance(names.value, str):
            columns = [part.strip() for part in names.value.split(",")]
        elif isinstance(names, ast.Tuple | ast.List):
            columns = [str(item.value) for item in names.elts if isinstance(item, ast.Constant)]
        else:
            return []
        if name not in columns or not isinstance(cases, ast.List | ast.Tuple):
            return []
        changes: list[_Change] = []
        for place, case in enumerate(cases.elts):
            side: _Side = (cases, "elts", place)
            if len(columns) > 1:
                if not isinstance(case, ast.Tuple | ast.List) or len(case.elts) != len(columns):
                    return []
                side = (case, "elts", columns.index(name))
            other = self._other(_get(side))
            if other is None:
                return []
            changes.append(_setter(side, other))
        return changes

    def _other(self, node: ast.AST, odd: int | None = None) -> ast.expr | None:
        """A literal of another value of the same type; None for what is no literal. `odd`: of an integer's change, so
        that a place has changes of both kinds."""
        if not isinstance(node, ast.expr):
            return None
        try:
            value = ast.literal_eval(node)
            found = another(value, self.dice)
            while odd is not None and type(value) is int and (found - value) % 2 != odd:
                found = another(value, self.dice)
            return None if found == value else ast.parse(repr(found), mode="eval").body
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return None


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of the function, without those of functions inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own_nodes(child)


def _expected_sides(statement: ast.stmt) -> Iterator[_Side]:
    """The sides of an equality that the statement asserts."""
    condition = _condition(statement)
    test = _get(condition) if condition is not None else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.Is):
        yield test, "comparators", 0
        yield test, "left", None
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        plain = len(call.args) == 2 and not call.keywords  # no `delta` that a change might stay within
        if isinstance(call.func, ast.Attribute) and call.func.attr in _EQUALITIES and plain:
            yield call, "args", 1
            yield call, "args", 0


def _condition(statement: ast.stmt) -> _Side | None:
    """Where the statement has what must be true: `assert x`, `self.assertTrue(x)`."""
    if isinstance(statement, ast.Assert):
        return statement, "test", None
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "assertTrue" and call.args:
            return call, "args", 0
    return None


def _reads(scope: ast.AST, name: str) -> int:
    return sum(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for node in ast.walk(scope)
    )


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_name(targets: list[ast.expr], name: str) -> bool:
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == name


def _get(side: _Side) -> Any:
    owner, field, index = side
    value = getattr(owner, field)
    return value if index is None else value[index]


def _setter(side: _Side, node: ast.expr) -> _Change:
    def change() -> None:
        owner, field, index = side
        if index is None:
            setattr(owner, field, node)
        else:
            getattr(owner, field)[index] = node

    return change


def _all(changes: list[_Change]) -> _Change:
    def change() -> None:
        for one in changes:
            one()

    return change
