"""Every key of a run's TOML with its kind, default and meaning.

Invariant: nothing is written down here: keys, bounds and defaults are those of the models, meanings the docstrings that
stand below their fields, so that what is shown is what is checked.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_SIGNS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
_PLAIN = {str: "text", bool: "true or false", int: "integer", float: "number", type(None): "nothing"}


@dataclass(frozen=True, slots=True)
class Key:
    """One line of TOML. `path`: with dots; `[]` behind a table that may come many times, `<name>` for a name of one's
    own. `default`: as TOML has it; empty where the key must be given."""

    path: str
    kind: str
    default: str
    meaning: str


def keys(model: type[BaseModel], path: str = "") -> Iterator[Key]:
    """Those of `model` and of all tables in it, in the order in which they are declared."""
    meanings = _meanings(model)
    for name, field in model.model_fields.items():
        here = f"{path}.{name}" if path else name
        table, suffix = _table_of(field.annotation)
        if table is None:
            yield Key(here, _kind(field), _default(field), meanings.get(name, ""))
        else:
            yield from keys(table, here + suffix)


def _table_of(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The model that a key is a table of, if it is one, and what stands behind the key."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    inner = [
        argument for argument in typing.get_args(annotation) if argument not in (Ellipsis, type(None), str)
    ]
    found = next((table for table, _ in map(_table_of, inner) if table is not None), None)
    origin = typing.get_origin(annotation)
    return found, "[]" if origin in (tuple, list) else ".<name>" if origin is dict else ""


def _kind(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(bound, name):g}"
        for bound in field.metadata
        for name, sign in _SIGNS
        if getattr(bound, name, None) is not None
    ]
    return " ".join([_words(field.annotation), *bounds])


def _words(annotation: Any) -> str:
    arguments, origin = typing.get_args(annotation), typing.get_origin(annotation)
    if origin is typing.Literal:
        return ", ".join(str(argument) for argument in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(one) for one in arguments if one is not type(None)))
    if origin is typing.Annotated:
        return _words(arguments[0])
    if origin in (tuple, list):
        return f"list of {_words(arguments[0])}"
    if origin is dict:
        return "table"
    return _PLAIN.get(
        annotation, "any value" if annotation is Any else str(getattr(annotation, "__name__", annotation))
    )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "(none)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list | frozenset | set):
        return f"[{', '.join(_default_of(one) for one in value)}]"
    return "{}" if value == {} else str(value)


def _default_of(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """The text below each field, those of the classes that it inherits from first."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, BaseModel) and kind is not BaseModel:
            found |= _written(kind)
    return found


def _written(kind: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError):  # a model without source: made at run time
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found: dict[str, str] = {}
    for field, below in itertools.pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
        ):
            text = below.value.value if isinstance(below.value, ast.Constant) else None
            if isinstance(text, str):
                found[field.target.id] = " ".join(text.split())
    return found
