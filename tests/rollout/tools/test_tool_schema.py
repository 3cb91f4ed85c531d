"""What is told of a tool, and what is accepted for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from services.rollout.tools.schema import signature_of
from services.rollout.tools.workspace import WorkspaceTools
from shared.domains.tools import ToolRefusal
from shared.domains.workspace_tools import WORKSPACE_TOOLS
from shared.errors import ConfigError


async def look_up(
    city: Annotated[str, "its English name"],
    days: Annotated[int, "how many", Field(ge=1, le=7)] = 1,
    unit: Literal["celsius", "fahrenheit"] = "celsius",
    tags: list[str] | None = None,
    weights: dict[str, float] | None = None,
) -> str:
    """Returns the weather
    of a city.

    Not told to the policy.
    """
    return f"{city} {days} {unit} {tags} {weights}"


def test_schema_of_a_signature() -> None:
    """As JSON Schema 2020-12 has it, in the shape that chat templates take."""
    assert signature_of(look_up).schema() == {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Returns the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "its English name"},
                    "days": {
                        "type": "integer",
                        "description": "how many",
                        "default": 1,
                        "minimum": 1,
                        "maximum": 7,
                    },
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                    "tags": {
                        "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                        "default": None,
                    },
                    "weights": {
                        "anyOf": [
                            {"type": "object", "additionalProperties": {"type": "number"}},
                            {"type": "null"},
                        ],
                        "default": None,
                    },
                },
                "required": ["city"],
            },
        },
    }


def test_arguments_are_read_with_their_defaults() -> None:
    read = signature_of(look_up).read({"city": "Bern", "days": "3"})
    assert read == {"city": "Bern", "days": 3, "unit": "celsius", "tags": None, "weights": None}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "argument 'city' is missing"),
        ({"city": 3}, "city is 3: it must be text"),
        ({"city": "x", "day": 2}, "unknown argument 'day'; did you mean 'days'?"),
        ({"city": "x", "days": 9}, "days is 9: it must be at most 7"),
        ({"city": "x", "days": "many"}, "days is 'many': it must be a whole number"),
        ({"city": "x", "unit": "celcius"}, "did you mean 'celsius'?"),
    ],
)
def test_a_wrong_argument_is_named_with_the_mend(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolRefusal) as refused:
        signature_of(look_up).read(arguments)
    assert str(refused.value).startswith("look_up: ")
    assert said in str(refused.value)


def _sync(x: int) -> str:
    """Is not async."""
    return str(x)


async def _silent(x: int) -> str:
    return str(x)


async def _untyped(x) -> str:  # type: ignore[no-untyped-def]
    """Has no type."""
    return str(x)


async def _many(*xs: int) -> str:
    """Takes any number."""
    return str(xs)


async def _strange(x: Callable[[], int]) -> str:
    """Takes what is no JSON."""
    return str(x)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_sync, "no async function"),
        (_silent, "no docstring"),
        (_untyped, "'x' has no type"),
        (_many, "must be a plain named one"),
        (_strange, "no JSON schema"),
    ],
)
def test_a_function_that_says_too_little_is_refused(function: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        signature_of(function)


def test_every_tool_of_the_sandbox_describes_every_argument() -> None:
    from shared.sandbox.sessions.session import Session

    session: Any = object.__new__(Session)
    for name in WORKSPACE_TOOLS:
        schema = WorkspaceTools(session).make(name).signature.schema()["function"]
        assert schema["name"] == name
        assert schema["description"]
        assert all(argument["description"] for argument in schema["parameters"]["properties"].values())
