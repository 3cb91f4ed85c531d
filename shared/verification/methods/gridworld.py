"""A small world: a grid with walls, keys and doors, boxes that can be pushed, and a goal.

Invariant: pure; `step` never leaves the grid, and says which action is illegal and why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

_MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_SHORT = {
    "u": "up",
    "d": "down",
    "l": "left",
    "r": "right",
    "n": "up",
    "s": "down",
    "w": "left",
    "e": "right",
}
_KNOWN = frozenset("#. @$*G+kD")
_MAX_CELLS = 250_000


class IllegalAction(ValueError):
    """An action that does not exist, or is not allowed in this state."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Places are (row, column). With boxes, the goal is a box on every goal cell; without, the player on one."""

    walls: frozenset[tuple[int, int]]
    goals: frozenset[tuple[int, int]]
    rows: int
    columns: int
    player: tuple[int, int]
    boxes: frozenset[tuple[int, int]] = frozenset()
    keys: frozenset[tuple[int, int]] = frozenset()
    doors: frozenset[tuple[int, int]] = frozenset()
    held: int = 0


class GridWorld:
    """State: `{"map": [rows]}`; `#` wall, `@` player, `G` goal, `$` box, `*` box on a goal, `+` player on a goal, `k`
    key, `D` door (takes a key). Actions: `up`, `down`, `left`, `right`, or their first letters."""

    def initial(self, state: Any) -> Grid:
        lines = state["map"]
        if isinstance(lines, str):
            lines = lines.strip("\n").split("\n")
        cells = [(row, column, mark) for row, line in enumerate(lines) for column, mark in enumerate(line)]
        if len(cells) > _MAX_CELLS or not all(mark in _KNOWN for *_, mark in cells):
            raise ValueError(f"a map of up to {_MAX_CELLS} cells of {''.join(sorted(_KNOWN))!r} is needed")

        def at(marks: str) -> frozenset[tuple[int, int]]:
            return frozenset((row, column) for row, column, mark in cells if mark in marks)

        players = at("@+")
        if len(players) != 1:
            raise ValueError(f"the map has {len(players)} players: it needs one")
        return Grid(
            walls=at("#"), goals=at("G*+"), rows=len(lines), columns=max(map(len, lines)), player=next(iter(players)),
            boxes=at("$*"), keys=at("k"), doors=at("D"),
        )  # fmt: skip

    def step(self, state: Grid, action: Any) -> Grid:
        if not isinstance(action, str):
            raise IllegalAction(f"an action is of type {type(action).__name__}")
        name = action.strip().lower()
        move = _MOVES.get(_SHORT.get(name, name))
        if move is None:
            raise IllegalAction(f"there is no action {action[:20]!a}")
        place = (state.player[0] + move[0], state.player[1] + move[1])
        self._free(state, place)
        if place in state.boxes:
            return self._pushed(state, place, move)
        if place in state.doors:
            if not state.held:
                raise IllegalAction("a door is shut and no key is held")
            return replace(state, player=place, doors=state.doors - {place}, held=state.held - 1)
        if place in state.keys:
            return replace(state, player=place, keys=state.keys - {place}, held=state.held + 1)
        return replace(state, player=place)

    def is_goal(self, state: Grid) -> bool:
        if state.boxes:
            return bool(state.goals) and state.goals <= state.boxes
        return state.player in state.goals

    def _pushed(self, state: Grid, place: tuple[int, int], move: tuple[int, int]) -> Grid:
        beyond = (place[0] + move[0], place[1] + move[1])
        self._free(state, beyond)
        if beyond in state.boxes or beyond in state.doors:
            raise IllegalAction("a box cannot be pushed there")
        return replace(state, player=place, boxes=state.boxes - {place} | {beyond})

    @staticmethod
    def _free(state: Grid, place: tuple[int, int]) -> None:
        inside = 0 <= place[0] < state.rows and 0 <= place[1] < state.columns
        if not inside or place in state.walls:
            raise IllegalAction("a wall is in the way")
