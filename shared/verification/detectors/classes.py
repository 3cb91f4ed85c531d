"""Classes whose instances answer every comparison alike.

Invariant: a comparison that looks at its other side is honest, however odd; one that does not, is not.
"""

from __future__ import annotations

import ast

from shared.verification.detectors.flags import Flag

_COMPARED = (
    "__eq__",
    "__ne__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__contains__",
    "__bool__",
    "__instancecheck__",
)


def flags_of_class(node: ast.ClassDef) -> set[Flag]:
    """`equality_patched` for a method of comparison that never reads what it compares with."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name in ("__eq__", "__ne__") and _reads_nothing(item):
            return {Flag.EQUALITY_PATCHED}
        if isinstance(item, ast.Assign):
            names = {target.id for target in item.targets if isinstance(target, ast.Name)}
            if names & set(_COMPARED) and isinstance(item.value, ast.Lambda | ast.Name):
                return {Flag.EQUALITY_PATCHED}
    return set()


def _reads_nothing(function: ast.FunctionDef) -> bool:
    arguments = [*function.args.posonlyargs, *function.args.args]
    if len(arguments) < 2:
        return True
    other = arguments[1].arg
    read = any(isinstance(part, ast.Name) and part.id == other for part in ast.walk(function))
    constant_only = all(
        isinstance(part.value, ast.Constant) and isinstance(part.value.value, bool)
        for part in ast.walk(function)
        if isinstance(part, ast.Return)
    )
    return not read or constant_only
