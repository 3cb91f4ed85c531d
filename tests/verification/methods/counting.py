"""A simulator as an operator would write one: count down to zero."""

from __future__ import annotations

from typing import Any


class Counting:
    def initial(self, state: Any) -> int:
        return int(state)

    def step(self, state: int, action: Any) -> int:
        return state - int(action)

    def is_goal(self, state: int) -> bool:
        return state == 0
