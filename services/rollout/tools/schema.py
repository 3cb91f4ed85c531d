"""From a function's signature to what the policy is told of it, and from the policy's arguments to the function's.

Invariant: what is told and what is checked are one model made from the signature, so a call that keeps the schema is
never refused for its shape, and one that does not never reaches the function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from shared.domains.tools import ToolRefusal
from shared.errors import ConfigError
from shared.plain_errors import explain


@dataclass(frozen=True, slots=True)
class Signature:
    """A tool's name, the first paragraph of its docstring, and its arguments."""

    name: str
    description: str
    arguments: type[BaseModel]

    def schema(self) -> dict[str, Any]:
        """`{"type": "function", "function": {name, description, parameters}}`, as chat templates take it."""
        parameters = _plain(self.arguments.model_json_schema())
        parameters.setdefault("properties", {})
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The function's arguments. Raises `ToolRefusal` naming the argument, its value and the mend."""
        try:
            checked = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            said = explain(self.arguments, error).replace("key ", "argument ")
            raise ToolRefusal(f"{self.name}: {said}") from error
        return {name: getattr(checked, name) for name in type(checked).model_fields}


def signature_of(function: Callable[..., Any], name: str = "") -> Signature:
    """Raises `ConfigError` for a function that says too little: no docstring, an argument without a type."""
    name = name or str(getattr(function, "__name__", ""))
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(f"tool {name!r} is no async function: write `async def`")
    description = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
    if not description:
        raise ConfigError(f"tool {name!r} has no docstring: its first paragraph is what the policy is told")
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {name!r}: argument {parameter.name!r} must be a plain named one")
        if parameter.name not in hints:
            raise ConfigError(f"tool {name!r}: argument {parameter.name!r} has no type")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (_described(hints[parameter.name]), default)
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields)
        model.model_json_schema()
    except Exception as error:  # pydantic has a dozen kinds for an annotation that is no JSON
        raise ConfigError(f"tool {name!r}: its arguments have no JSON schema: {error}") from error
    return Signature(name, description, model)


def _described(annotation: Any) -> Any:
    """`Annotated[str, "a path"]` → a field that is described so."""
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, *notes = get_args(annotation)
    texts = [note for note in notes if isinstance(note, str)]
    others = [note for note in notes if not isinstance(note, str)]
    described: Any = kind
    for note in (*others, *([Field(description=" ".join(texts))] if texts else [])):
        described = Annotated[described, note]
    return described


def _plain(schema: Any) -> Any:
    """Without pydantic's titles, which say every name twice."""
    if isinstance(schema, dict):
        return {
            key: {name: _plain(item) for name, item in value.items()}
            if key in ("properties", "$defs")
            else _plain(value)
            for key, value in schema.items()
            if key != "title" and (key, value) != ("additionalProperties", False)
        }
    return [_plain(item) for item in schema] if isinstance(schema, list) else schema
