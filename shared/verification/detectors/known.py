"""Answers that are written down instead of computed.

Invariant: a table is a finding only where it holds most of the known inputs beside their outputs; a table of the
problem itself (days of months, Roman digits) seldom does.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_LEAST = 2
"""Pairs: one alone is what a docstring or a base case holds."""
_SHARE = 0.5
_MAX_EXAMPLES = 200


@dataclass(frozen=True, slots=True)
class Example:
    """One input, as the tuple of its arguments, and the output it must have; plain data."""

    arguments: tuple[Any, ...]
    expected: Any


def examples_in_test(test: str, *entries: str) -> tuple[Example, ...]:
    """Literal pairs `entry(<literals>) == <literal>` of a test's source; of any function where no entry is named."""
    try:
        tree = ast.parse(test)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found: list[Example] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.Is):
            for call, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
                if (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Name)
                    and _is_one(call.func.id, entries)
                ):
                    pair = _pair(call, other)
                    found += [pair] if pair else []
    return tuple(found[:_MAX_EXAMPLES])


def _is_one(name: str, entries: tuple[str, ...]) -> bool:
    return name in entries if entries else not hasattr(builtins, name)


def embeds_answers(tree: ast.AST, known: Sequence[Example]) -> bool:
    """Whether at least half of the known pairs, and two, stand side by side as literals in the tree."""
    wanted = {(_key(_one(example)), _key(example.expected)) for example in known[:_MAX_EXAMPLES]}
    wanted = {pair for pair in wanted if pair[0] is not None and pair[1] is not None}
    if len(wanted) < _LEAST:
        return False
    seen = wanted & set(_pairs(tree))
    return len(seen) >= max(_LEAST, _SHARE * len(wanted))


def looks_at_no_input(tree: ast.Module, entry_point: str) -> bool:
    """Whether the function takes arguments, reads none of them, and returns a constant."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == entry_point:
            arguments = {
                item.arg for item in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            }
            read = any(isinstance(part, ast.Name) and part.id in arguments for part in ast.walk(node))
            returned = [part.value for part in ast.walk(node) if isinstance(part, ast.Return)]
            constant = bool(returned) and all(
                isinstance(value, ast.Constant) and value.value is not None for value in returned
            )
            return bool(arguments) and not read and constant
    return False


def constant_functions(tree: ast.Module) -> bool:
    """Whether any function of the module answers a constant whatever it is given."""
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return any(looks_at_no_input(tree, name) for name in names)


def _pairs(tree: ast.AST) -> Iterator[tuple[str | None, str | None]]:
    """(input, output) pairs of dict displays, of `if x == …: return …` chains, and of lists of pairs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is not None:
                    yield _literal_key(key), _literal_key(value)
        elif isinstance(node, ast.If | ast.IfExp):
            yield from _branch(node)
        elif isinstance(node, ast.Tuple | ast.List) and len(node.elts) == 2:
            yield _literal_key(node.elts[0]), _literal_key(node.elts[1])
        elif isinstance(node, ast.match_case):
            yield from _case(node)


def _branch(node: ast.If | ast.IfExp) -> Iterator[tuple[str | None, str | None]]:
    value: ast.expr | None = None
    if isinstance(node, ast.IfExp):
        value = node.body
    elif node.body:
        value = _given(node.body[0])
    if value is None:
        return
    sides = [
        side
        for part in ast.walk(node.test)
        if isinstance(part, ast.Compare)
        for side in (part.left, *part.comparators)
    ]
    for side in sides:
        yield _literal_key(side), _literal_key(value)
    literals = [key for side in sides if (key := _literal_key(side)) is not None]
    if len(literals) > 1:
        yield f"({', '.join(literals)})", _literal_key(value)


def _case(node: ast.match_case) -> Iterator[tuple[str | None, str | None]]:
    value = _given(node.body[0])
    for part in ast.walk(node.pattern):
        if isinstance(part, ast.MatchValue) and value is not None:
            yield _literal_key(part.value), _literal_key(value)


def _given(statement: ast.stmt) -> ast.expr | None:
    """What a branch answers: what it returns, or prints alone."""
    if isinstance(statement, ast.Return):
        return statement.value
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        printed = isinstance(call.func, ast.Name) and call.func.id == "print" and len(call.args) == 1
        return call.args[0] if printed else None
    return None


def _pair(call: ast.Call, other: ast.expr) -> Example | None:
    try:
        arguments = tuple(ast.literal_eval(argument) for argument in call.args)
        return Example(arguments, ast.literal_eval(other)) if arguments and not call.keywords else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _one(example: Example) -> Any:
    return example.arguments[0] if len(example.arguments) == 1 else example.arguments


def _literal_key(node: ast.expr) -> str | None:
    try:
        return _key(ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _key(value: Any) -> str | None:
    """One text for equal data: lists and tuples are the same, since a table needs hashable keys."""
    try:
        if isinstance(value, list | tuple):
            inner = [_key(item) for item in value]
            return None if None in inner else f"({', '.join(map(str, inner))})"
        return repr(value)
    except (ValueError, RecursionError):
        return None


_READERS = frozenset(
    ("input", "stdin", "fileinput", "argv", "fdopen", "open", "read", "readline", "readlines")
)


def reads_no_input(tree: ast.AST) -> bool:
    """Whether a program has nothing that could read its standard input."""
    return not any(
        (isinstance(node, ast.Name) and node.id in _READERS)
        or (isinstance(node, ast.Attribute) and node.attr in _READERS)
        or (
            isinstance(node, ast.alias)
            and node.name.partition(".")[0] in ("fileinput", "sys", "os", "subprocess")
        )
        for node in ast.walk(tree)
    )
