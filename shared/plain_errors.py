"""What pydantic, Python and the system say of a fault, in words of ours: one line that names the key, the value and the
mend.

Invariant: every error of a document is named once, by its place in the document; one that only follows from
another (a list that is too short because its one entry was refused) is left out, and no class name of ours is said.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Callable, Collection
from typing import Any

from pydantic import BaseModel, ValidationError

_SHOWN = 60
_TABLE = "it must be a table (key = value)"
_LIST = "it must be a list [ … ]"

_WORDS: dict[str, str] = {
    "int_parsing": "it must be a whole number",
    "int_type": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "int_parsing_size": "it must be a whole number of at most 19 digits",
    "float_parsing": "it must be a number",
    "float_type": "it must be a number",
    "finite_number": "it must be a finite number",
    "bool_parsing": "it must be true or false",
    "bool_type": "it must be true or false",
    "string_type": "it must be text, in quotes",
    "list_type": _LIST,
    "tuple_type": _LIST,
    "set_type": _LIST,
    "dict_type": _TABLE,
    "model_type": _TABLE,
    "model_attributes_type": _TABLE,
}

_BOUNDS: dict[str, tuple[str, str]] = {
    "greater_than": ("gt", "it must be over {}"),
    "greater_than_equal": ("ge", "it must be at least {}"),
    "less_than": ("lt", "it must be under {}"),
    "less_than_equal": ("le", "it must be at most {}"),
    "string_pattern_mismatch": ("pattern", "it must match the pattern {}"),
    "string_too_short": ("min_length", "it must have at least {} characters"),
    "string_too_long": ("max_length", "it must have at most {} characters"),
    "too_long": ("max_length", "it must have at most {} entries"),
}


def explain(model: type[BaseModel], error: ValidationError, whole: str = "it", *, under: str = "") -> str:
    """All that is wrong, joined by semicolons. `whole` names the document where an error is of no key; `under` is the
    path of keys at which it stands in a larger one, and begins every place."""
    items = error.errors(include_url=False)
    return "; ".join(_explain(model, item, whole, under) for item in items if not _follows(item, items))


def one_line(error: BaseException, most: int = 300) -> str:
    """The class of an error that is not ours and the beginning of its text, without line breaks."""
    text = " ".join(str(error).split())
    said = text if len(text) <= most else text[: most - 1] + "…"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def said(error: BaseException) -> str:
    """The text of an error; of the system's without number and path, which whoever says it names better."""
    text = isinstance(error, OSError) and error.strerror
    return text or str(error) or type(error).__name__


def counted(number: int, one: str, more: str = "") -> str:
    """`1 step`, `2 steps`; `more` where it is not `one` with an s."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def nearest(name: str, known: Collection[str]) -> str:
    """`; did you mean 'steps'?`, or nothing where no known name is near."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def nearest_or_all(name: str, known: Collection[str]) -> str:
    """As `nearest`; where no known name is near, all of them."""
    return nearest(name, known) or f"; known: {', '.join(sorted(known))}"


def _follows(item: Any, items: list[Any]) -> bool:
    """A refused entry is not counted by pydantic, so its list is called too short as well."""
    place = item["loc"]
    return item["type"] == "too_short" and any(
        other is not item and len(other["loc"]) > len(place) and other["loc"][: len(place)] == place
        for other in items
    )


def _explain(model: type[BaseModel], item: Any, whole: str, under: str) -> str:
    place, kind = item["loc"], item["type"]
    where = _path(under, place)
    if kind == "extra_forbidden":
        return _unknown_key(where, str(place[-1]), _fields_at(model, place[:-1]))
    if kind == "missing":
        if isinstance(place[-1], int):
            return f"{_path(under, place[:-1])}: entry {place[-1] + 1} is missing"
        return f"key {where!r} is missing"
    if kind == "too_short":
        least = item["ctx"]["min_length"]
        return (
            f"{where} has no entry: give at least {least}"
            if least == 1
            else f"{where}: give at least {least} entries"
        )
    if kind == "value_error":
        said = str(item["ctx"]["error"])
        return f"{where}: {said}" if where else said
    return f"{_subject(where or whole, item['input'])}: {_words(kind, item)}"


def _path(under: str, place: tuple[Any, ...]) -> str:
    return ".".join([*([under] if under else []), *map(str, place)])


def _unknown_key(where: str, name: str, known: Collection[str]) -> str:
    others = f"; known: {', '.join(sorted(known))}" if known else ""
    return f"unknown key {where!r}{nearest(name, known) or others}"


def _subject(where: str, value: Any) -> str:
    if isinstance(value, BaseModel):
        return where
    if isinstance(value, dict | list | tuple) and len(repr(value)) > _SHOWN:
        return f"{where} is a {'table' if isinstance(value, dict) else 'list'}"
    if isinstance(value, float | int | bool):
        return f"{where} is {str(value).lower()}"
    shown = repr(value)
    return f"{where} is {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'}"


def _words(kind: str, item: Any) -> str:
    if _WORDS.get(kind) is _LIST and isinstance(item["input"], dict):
        return f"it must be a list of tables: write [[{item['loc'][-1]}]]"
    if kind in _WORDS:
        return _WORDS[kind]
    context = item.get("ctx", {})
    if kind in _BOUNDS:
        key, text = _BOUNDS[kind]
        bound = context[key]
        return text.format(f"{bound:g}" if isinstance(bound, float) else bound)
    if kind in ("literal_error", "enum"):
        return _choices(context["expected"], item["input"])
    if kind == "json_invalid":
        return f"it is not JSON: {context['error']}"
    message: str = item["msg"]
    return message.replace("Input should be", "it must be").replace("Value error, ", "")


def _choices(expected: str, value: Any) -> str:
    """From `'sft', 'preference' or 'rl'`."""
    names = [part.strip(" '") for part in expected.replace(" or ", ", ").split(",")]
    return f"it must be {expected}{nearest(value, names) if isinstance(value, str) else ''}"


def _fields_at(model: type[BaseModel], place: tuple[Any, ...]) -> set[str]:
    """Names that the model at this place of the document reads; empty where that cannot be told."""
    found: type[BaseModel] | None = model
    for part in place:
        if isinstance(part, int) or found is None:
            continue
        field = found.model_fields.get(part)
        found = None if field is None else _model_in(field.annotation)
    return set(found.model_fields) if found is not None else set()


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The first model that an annotation names: `tuple[Stage, ...]` → Stage."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner: Callable[[Any], tuple[Any, ...]] = typing.get_args
    return next((m for part in inner(annotation) if (m := _model_in(part)) is not None), None)
