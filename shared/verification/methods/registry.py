"""Every check method by its name.

Invariant: a name is there once, and its request is read the same way wherever it comes from: a domain, or a line of
`temper judge`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from shared.errors import ConfigError, ContractError
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.verification.judgement import Judgement
from shared.verification.methods import (
    function_tests,
    geometry,
    program_tests,
    property_check,
    pytest_suite,
    replay,
    sql_result,
    state_diff,
)

_NAMED = 8
"""Missing fields that a message names."""
Check = Callable[[Sandbox, Any, Limits], Awaitable[Judgement]]


@dataclass(frozen=True, slots=True)
class Method:
    """A request's model and its check. `packages`: what `sandbox.python_packages` must name for it."""

    name: str
    request: type[BaseModel]
    check: Check
    packages: tuple[str, ...] = ()
    jailed: bool = True
    """Whether it needs a sandbox at all."""

    def read(self, record: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Any:
        """The typed request of a record; `defaults` fill what it leaves out. Raises `ContractError` in one line."""
        fields, options = split_options(self, defaults or {})
        merged: dict[str, Any] = {**fields, **record}
        if options:
            given = record.get("options", {})
            if not isinstance(given, Mapping):
                raise ContractError("`options` is no object")
            merged["options"] = {**options, **given}
        try:
            return self.request.model_validate(merged)
        except ValidationError as error:
            raise ContractError(f"no request for method {self.name!r}: {_in_words(error)}") from error

    def read_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Raises `ConfigError` where the names of `defaults` are none of this method, or its options do not fit."""
        _, options = split_options(self, defaults)
        declared = self.request.model_fields.get("options")
        if declared is not None and isinstance(declared.annotation, type):
            try:
                declared.annotation.model_validate(options)
            except ValidationError as error:
                raise ConfigError(f"options of method {self.name!r}: {_in_words(error)}") from error


DECLARED: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("python_function_tests", function_tests.PythonFunctionTests, function_tests.check),
        Method("program_tests", program_tests.ProgramTests, program_tests.check),
        Method("pytest_suite", pytest_suite.PytestSuite, pytest_suite.check, pytest_suite.PACKAGES),
        Method("property_check", property_check.PropertyCheck, property_check.check),
        Method("sql_result", sql_result.SqlResult, sql_result.check),
        Method("geometry", geometry.Geometry, geometry.check, geometry.PACKAGES),
        Method("state_diff", state_diff.StateDiff, state_diff.check, jailed=False),
        Method("replay", replay.Replay, replay.check, jailed=False),
    )
}


METHODS: Mapping[str, tuple[type[BaseModel], Check]] = {
    name: (method.request, method.check) for name, method in DECLARED.items()
}
"""What a service needs of each: the model of its request, and the check."""


def method(name: str) -> Method:
    """Raises `ConfigError` for an unknown name."""
    if name not in DECLARED:
        raise ConfigError(f"check method {name!r} is unknown; known: {', '.join(DECLARED)}")
    return DECLARED[name]


def packages(names: Iterable[str]) -> tuple[str, ...]:
    """What a sandbox must show for these methods, NumPy first: candidates and tests use it most."""
    return tuple(dict.fromkeys(("numpy", *(package for name in names for package in method(name).packages))))


def split_options(method: Method, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Defaults for a request's own fields, and those for its `options`. Raises `ConfigError` for an unknown name."""
    fields = set(method.request.model_fields) - {"options"}
    declared = method.request.model_fields.get("options")
    inner = declared.annotation if declared is not None else None
    names = set(inner.model_fields) if isinstance(inner, type) and issubclass(inner, BaseModel) else set()
    unknown = sorted(given.keys() - fields - names)
    if unknown:
        known = ", ".join(sorted(names or fields))
        raise ConfigError(f"option {unknown[0]!r} of method {method.name!r} is unknown; known: {known}")
    both = {name: value for name, value in given.items() if name in names}
    return {name: value for name, value in given.items() if name not in names}, both


def _in_words(error: ValidationError) -> str:
    """Every field that is missing, and the first of what else is wrong."""
    found = error.errors(include_url=False)
    missing = [_place(one) for one in found if one["type"] == "missing"]
    others = [one for one in found if one["type"] != "missing"]
    parts = []
    if missing:
        named = missing[:_NAMED]
        parts.append(", ".join(named) + (": it is missing" if len(named) == 1 else ": these are missing"))
    if others:
        words = others[0]["msg"].removeprefix("Value error, ")
        parts.append(f"{_place(others[0])}: {words}" if others[0]["loc"] else words)
    left = len(missing[_NAMED:]) + len(others[1:])
    return "; ".join(parts) + (f" (and {left} more)" if left else "")


def _place(one: ErrorDetails) -> str:
    return ".".join(map(str, one["loc"]))
