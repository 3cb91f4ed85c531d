"""A drawn package: its modules, the broken function, the calls that show it, and the tests.

Invariant: with the right line the visible test and every hidden test pass; with the wrong one the visible test and the
first hidden test fail. Hidden tests call with other arguments, but where a single call shows the bug. Expected values are what the right source returns, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shared.domains.code_repair.kinds import ROUTINES, RepairDifficulty
from shared.domains.code_repair.routine import Arguments, Routine, called, function_of
from shared.domains.draw import Draw

PACKAGES = ("toolbox", "helpers", "kit", "basics", "parts", "library")
MODULES = ("first", "second", "third")
HIDDEN_TESTS = 3
"""Each is contradicted three times (`SuiteOptions.controls`); fewer would be run twice."""
_CALLS_A_TEST = 2
_TRIES = 200
"""A bug at an edge is shown by one call in thirty."""
_ENOUGH = 10
_Call = tuple[Arguments, Any]


@dataclass(frozen=True, slots=True)
class Package:
    """`files`: as the policy gets them. `right`, `wrong`: the line that decides, in module `path`, line `number` (from 1).
    `hidden`: the test file that nobody sees."""

    name: str
    function: str
    path: str
    files: dict[str, str]
    hidden: str
    visible: tuple[tuple[Arguments, Any], ...]
    right: str
    wrong: str
    number: int

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(f"{HIDDEN_PATH}::test_{number}" for number in range(1, HIDDEN_TESTS + 1))


HIDDEN_PATH = "tests/test_hidden.py"
VISIBLE_PATH = "test_package.py"


def draw_package(draw: Draw, difficulty: RepairDifficulty) -> Package:
    """Raises `ValueError` where no arguments show the bug: a mistake in a routine of ours."""
    routine_name, _, bug = draw.choice(difficulty.chosen()).partition("/")
    routine = ROUTINES[routine_name]
    others = draw.sample([name for name in ROUTINES if name != routine_name], difficulty.functions - 1)
    package, function = draw.choice(PACKAGES), draw.choice(routine.names)
    right, wrong = routine.written(function), routine.broken(function, bug)
    shown, kept = _shared_out(*_calls(draw, routine, function, bug), difficulty.shown)
    sources = [wrong, *(ROUTINES[name].written(draw.choice(ROUTINES[name].names)) for name in others)]
    modules = _spread(draw, sources, difficulty.modules)
    path = next(f"{package}/{module}.py" for module, parts in modules.items() if wrong in parts)
    files = {f"{package}/{module}.py": "\n\n".join(parts) for module, parts in modules.items()}
    files[f"{package}/__init__.py"] = ""
    module = path.removesuffix(".py").replace("/", ".")
    files[VISIBLE_PATH] = _test_file(module, function, [shown])
    number, right_line, wrong_line = _difference(files[path], wrong, right)
    return Package(
        package,
        function,
        path,
        files,
        hidden=_test_file(module, function, [kept[at::HIDDEN_TESTS] for at in range(HIDDEN_TESTS)]),
        visible=tuple(shown),
        right=right_line,
        wrong=wrong_line,
        number=number,
    )


def _calls(draw: Draw, routine: Routine, function: str, bug: str) -> tuple[list[_Call], list[_Call]]:
    """Calls, no two alike: of which the wrong source makes something else than the right one, and the others."""
    right = function_of(routine.written(function), function)
    wrong = function_of(routine.broken(function, bug), function)
    telling: dict[str, _Call] = {}
    others: dict[str, _Call] = {}
    for _ in range(_TRIES):
        arguments = routine.arguments(draw)
        expected = called(right, arguments)
        tells = not _same(expected, called(wrong, arguments))
        (telling if tells else others).setdefault(repr(arguments), (arguments, expected))
        if len(telling) == _ENOUGH:
            break
    if not telling:
        raise ValueError(f"{function}: no call of {_TRIES} shows the bug {bug!r}")
    return list(telling.values()), list(others.values())


def _shared_out(telling: list[_Call], others: list[_Call], shown: int) -> tuple[list[_Call], list[_Call]]:
    """(shown, kept): the bug shows in both. Where one call alone shows it, both have it."""
    kept = HIDDEN_TESTS * _CALLS_A_TEST
    first, *more = telling
    rest = [*more, *others]
    return [first, *rest[kept : kept + shown - 1]], rest[:kept] if more else [first, *rest[: kept - 1]]


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _spread(draw: Draw, sources: list[str], modules: int) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {module: [] for module in MODULES[: min(modules, len(sources))]}
    names = list(parts)
    for number, source in enumerate(draw.shuffled(sources)):
        parts[names[number % len(names)]].append(source)
    return parts


def _test_file(module: str, function: str, tests: list[list[tuple[Arguments, Any]]]) -> str:
    lines = [f"from {module} import {function}"]
    for number, calls in enumerate(tests, start=1):
        lines += ["", "", f"def test_{number}():"]
        for arguments, expected in calls:
            lines.append(f"    assert {function}({', '.join(map(repr, arguments))}) == {expected!r}")
    return "\n".join(lines) + "\n"


def _difference(module: str, wrong: str, right: str) -> tuple[int, str, str]:
    """(line number in the module, right line, wrong line)."""
    mended = module.replace(wrong, right)
    for number, (one, other) in enumerate(zip(mended.split("\n"), module.split("\n"), strict=True), start=1):
        if one != other:
            return number, one, other
    raise ValueError("the bug changes no line")
