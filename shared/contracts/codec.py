"""Messages to bytes and back.

Invariant: `decode(header, encode(m)) == m` for every message, and `decode` either returns a valid message or
raises a `ContractError` that names what is wrong; nothing else escapes it.
"""

from __future__ import annotations

import functools
import re

from pydantic import ValidationError

from shared.contracts.base import Message
from shared.contracts.control import Control, Evaluation
from shared.contracts.policy import Policy
from shared.contracts.reward import Reward
from shared.contracts.step import Notice, Step
from shared.contracts.task import Task
from shared.contracts.trajectory import Trajectory
from shared.contracts.worker import Heartbeat
from shared.errors import ContractError, UnknownVersionError

MESSAGES: tuple[type[Message], ...] = (
    Task, Trajectory, Reward, Policy, Step, Notice, Heartbeat, Control, Evaluation,
)  # fmt: skip
_BY_SCHEMA: dict[str, type[Message]] = {message.SCHEMA: message for message in MESSAGES}
_HEADER = re.compile(r"^(?P<name>[a-z_.]+)/(?P<version>[0-9]{1,6})$")


def schema_header(message: Message | type[Message]) -> str:
    """`temper.task/1`."""
    return f"{message.SCHEMA}/{message.VERSION}"


def encode(message: Message) -> bytes:
    # What `model_dump_json` calls too: that turns the bytes into text, which costs a third more for a small body.
    return message.__pydantic_serializer__.to_json(message, exclude_defaults=True)


@functools.lru_cache(maxsize=256)
def message_type(header: str) -> type[Message]:
    """Raises `UnknownVersionError` for a version this build does not read, `ContractError` otherwise."""
    match = _HEADER.match(header)
    if match is None:
        raise ContractError(f"schema header is {header!r}: it must read like 'temper.task/1'")
    found = _BY_SCHEMA.get(match["name"])
    if found is None:
        raise ContractError(
            f"schema {match['name']!r} is unknown: this build reads {', '.join(sorted(_BY_SCHEMA))}"
        )
    version = int(match["version"])
    if not 1 <= version <= found.VERSION:
        raise UnknownVersionError(
            f"{found.SCHEMA} version {version} is not readable: this build reads up to {found.VERSION}; upgrade this service"
        )
    return found


def decode(header: str, raw: bytes) -> Message:
    """The message of `raw` under the schema named by `header`."""
    kind = message_type(header)
    try:
        message: Message = kind.__pydantic_validator__.validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise ContractError(f"{header} is not readable: {where}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{header} is not readable: {error}") from error
    return message
