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


class Leaving:
    """Ends the process in the method that `state` names."""

    def initial(self, state: Any) -> Any:
        return self._leave(state, "initial")

    def step(self, state: Any, action: Any) -> Any:
        return self._leave(state, "step")

    def is_goal(self, state: Any) -> bool:
        self._leave(state, "is_goal")
        return False

    def _leave(self, state: Any, where: str) -> Any:
        if state == where:
            raise SystemExit(3)
        return state


class Loud(Counting):
    def initial(self, state: Any) -> int:
        print("said by the simulator")
        return 1
