"""A call of a tool, as it was answered."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from shared.contracts.base import Part


class ToolCall(Part):
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    result: str = ""
    error: str = ""
    """What the policy did wrong, as it was told; a fault of ours ends the attempt and is in no call."""
    seconds: float = 0.0
    turn: int = Field(default=0, ge=0)
    """Of the policy, counted from 0."""
