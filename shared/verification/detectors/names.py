"""What a Python expression names, as far as its source tells.

Invariant: nothing is run; a text that cannot be known from the source alone is None. Work is bounded by the tree.
"""

from __future__ import annotations

import ast

_MAX_FOLDED = 4096


class Names:
    """Dotted names behind the aliases of one module: `import os as o; o._exit` is `os._exit`.

    Follows imports, plain assignments, `getattr(x, "name")`, `__import__("x")`, `importlib.import_module("x")`,
    `sys.modules["x"]` and `vars(x)["name"]`, `x.__dict__["name"]`, wherever their texts are constant.
    """

    def __init__(self, tree: ast.AST) -> None:
        self._aliases: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    self._aliases[bound] = alias.name if alias.asname else bound
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self._aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Assign)
                and len(node.targets) == 1
                and isinstance(node.targets[0], ast.Name)
            ):
                named = self.dotted(node.value)
                if named and named not in (node.targets[0].id, None) and self._worth(named):
                    self._aliases.setdefault(node.targets[0].id, named)

    def _worth(self, named: str) -> bool:
        """An alias of a module or of what is in one; locals that copy locals would only lead astray."""
        return (
            "." in named
            or named in self._aliases.values()
            or named in ("open", "exec", "eval", "exit", "quit")
        )

    def dotted(self, node: ast.AST) -> str | None:
        """`a.b.c` behind an expression, or None."""
        if isinstance(node, ast.Name):
            return self._aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return f"{base}.{node.attr}" if base else None
        if isinstance(node, ast.Call):
            return self._called(node)
        if isinstance(node, ast.Subscript):
            return self._item(node)
        return None

    def _called(self, node: ast.Call) -> str | None:
        name = self.dotted(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else None
        if name in ("__import__", "builtins.__import__", "importlib.import_module") and node.args:
            return folded(node.args[0])
        if name in ("getattr", "builtins.getattr") and len(node.args) >= 2:
            base, attribute = self.dotted(node.args[0]), folded(node.args[1])
            return f"{base}.{attribute}" if base and attribute else None
        if name in ("vars", "builtins.vars") and node.args:
            return self.dotted(node.args[0])
        return None

    def _item(self, node: ast.Subscript) -> str | None:
        base, key = self.dotted(node.value), folded(node.slice)
        if not base or not key:
            return None
        if base == "sys.modules":
            return key
        if base.endswith(".__dict__"):
            return f"{base.removesuffix('.__dict__')}.{key}"
        return f"{base}.{key}"


def folded(node: ast.AST) -> str | None:
    """The constant text of an expression: literals, `+`, f-strings and `"".join` of such, `[::-1]`, or None."""
    text = _fold(node)
    return text if text is not None and len(text) <= _MAX_FOLDED else None


def _fold(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Constant(value=bytes() as raw):
            return raw.decode("latin-1")
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _fold(left), _fold(right)
            return first + second if first is not None and second is not None else None
        case ast.JoinedStr(values=values):
            return _joined("", values)
        case ast.FormattedValue(value=value, format_spec=None):
            return _fold(value)
        case ast.Call(
            func=ast.Attribute(value=mark, attr="join"), args=[ast.List(elts=e) | ast.Tuple(elts=e)]
        ):
            between = _fold(mark)
            return None if between is None else _joined(between, e)
        case ast.Call(func=ast.Name(id="chr"), args=[ast.Constant(value=int() as point)]) if (
            0 <= point < 0x110000
        ):
            return chr(point)
        case ast.Subscript(
            value=value, slice=ast.Slice(lower=None, upper=None, step=ast.UnaryOp(ast.USub(), one))
        ):
            backwards = _fold(value)
            return backwards[::-1] if backwards and isinstance(one, ast.Constant) and one.value == 1 else None
    return None


def _joined(between: str, nodes: list[ast.expr]) -> str | None:
    parts = [_fold(node) for node in nodes]
    return between.join(part or "" for part in parts) if all(part is not None for part in parts) else None
