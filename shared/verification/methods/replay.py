"""`replay`: the policy's actions, played again on a simulator of ours, must reach the goal.

Invariant: actions are plain data and bounded in number; what the policy says about the state is never believed, only
its actions are. A simulator is pure: the same state and action give the same state; nothing but a class with a
simulator's three methods is ever called, and whatever it raises beside `IllegalAction` is a fault of the domain's.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_validator

from shared.errors import ConfigError, VerificationFault
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.verification.detectors.flags import Flag
from shared.verification.detectors.wording import flags_of_literal, hedges
from shared.verification.judgement import Judgement
from shared.verification.methods.base import Request
from shared.verification.methods.gridworld import GridWorld, IllegalAction

_METHODS = ("initial", "step", "is_goal")
_SIMULATORS: dict[str, type[Any]] = {"gridworld": GridWorld}


class Simulator(Protocol):
    """A world. `state` is whatever the simulator makes of the task's plain data."""

    def initial(self, state: Any) -> Any:
        """Raises `ValueError` for a state that is none."""

    def step(self, state: Any, action: Any) -> Any:
        """The next state. Raises `IllegalAction` for an action that does not exist or is not allowed there."""

    def is_goal(self, state: Any) -> bool: ...


class ReplayOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    max_actions: int = Field(default=10_000, ge=1)
    stop_at_goal: bool = True
    """Reaching the goal on the way is enough; otherwise the last state must be one."""
    illegal: str = Field(default="fails", pattern="^(fails|ignored)$")
    """An illegal action ends the replay, or changes nothing."""


class Replay(Request):
    """`simulator`: a known name, or `module:Class` of the operator's own. `state`: where the world begins.

    `actions` is the policy's: a list, or anything else, which is a failed attempt.
    """

    simulator: str
    state: Any
    actions: Any
    options: ReplayOptions = ReplayOptions()

    @field_validator("actions")
    @classmethod
    def _kept(cls, given: Any) -> Any:
        return tuple(given) if isinstance(given, list | tuple) else given


async def check(sandbox: Sandbox | None, request: Replay, limits: Limits) -> Judgement:
    """Raises `VerificationFault` for a world that cannot be made, `ConfigError` for an unknown simulator."""
    del sandbox, limits
    world = simulator(request.simulator)
    if not isinstance(request.actions, tuple):
        return Judgement.failed("the actions are no list")
    judged = play(world, request)
    flags: set[Flag] = set()
    for action in request.actions[:100]:
        if isinstance(action, str):
            flags |= flags_of_literal(action) | ({Flag.HEDGED_ANSWER} if hedges(action) else set())
    return judged.flagged(flags if judged.verdict != "passed" else ())


def play(world: Simulator, request: Replay) -> Judgement:
    """The verdict on a list of actions."""
    options = request.options
    state = _asked(request, "make its first state", world.initial, request.state)
    if len(request.actions) > options.max_actions:
        return Judgement.failed(f"{len(request.actions)} actions: the limit is {options.max_actions}")
    for number, action in enumerate(request.actions, start=1):
        if options.stop_at_goal and _asked(request, "say whether the goal is reached", world.is_goal, state):
            break
        try:
            state = _asked(request, f"take action {number}", world.step, state, action)
        except IllegalAction as error:
            if options.illegal == "fails":
                return Judgement.failed(f"action {number} is illegal: {error}")
    if _asked(request, "say whether the goal is reached", world.is_goal, state):
        return Judgement.passed()
    return Judgement.failed(f"the goal is not reached after {len(request.actions)} actions")


def _asked(request: Replay, what: str, method: Callable[..., Any], *arguments: Any) -> Any:
    """What the simulator says. Raises `IllegalAction`, and `VerificationFault` for all else, `SystemExit` too."""
    try:
        return method(*arguments)
    except IllegalAction:
        raise
    except (Exception, SystemExit) as error:
        raise VerificationFault(
            f"simulator {request.simulator!r} cannot {what}: {type(error).__name__}: {error}; mend the domain"
        ) from error


def simulator(name: str) -> Simulator:
    """A simulator by its name. Raises `ConfigError`."""
    kind = _SIMULATORS.get(name)
    if kind is None:
        kind = _imported(name)
    try:
        made: Simulator = kind()
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"simulator {name!r} cannot be made without arguments: {type(error).__name__}: {error}"
        ) from error
    return made


def _imported(name: str) -> type[Any]:
    module, separator, attribute = name.partition(":")
    known = ", ".join(sorted(_SIMULATORS))
    if not separator:
        raise ConfigError(f"simulator {name!r} is unknown; known: {known}; or give 'module:Class'")
    try:
        found: type[Any] = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a module's own code runs here
        raise ConfigError(f"simulator {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    missing = [method for method in _METHODS if not callable(getattr(found, method, None))]
    if not inspect.isclass(found) or missing:
        raise ConfigError(
            f"simulator {name!r} is no simulator: give a class with the methods {', '.join(_METHODS)}"
        )
    return found
