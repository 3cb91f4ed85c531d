"""One function of a package: how it should be, how it may be wrong, and what it is called with.

Invariant: every bug changes exactly one line of the right source, ends for every call, and is shown by some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shared.domains.draw import Draw

Arguments = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Routine:
    """`source` has `{name}` in the place of the function's name. `what`: the docstring. `bugs`: kind of the bug → (part
    of one line, what stands there instead). `arguments`: a call's, of plain data."""

    what: str
    names: tuple[str, ...]
    source: str
    bugs: Mapping[str, tuple[str, str]]
    arguments: Callable[[Draw], Arguments]

    def written(self, name: str) -> str:
        """The right source under a name, docstring included."""
        head, _, body = self.source.format(name=name).partition("\n")
        return f'{head}\n    """{self.what}"""\n{body}'

    def broken(self, name: str, bug: str) -> str:
        right, wrong = self.bugs[bug]
        whole = self.written(name)
        if whole.count(right) != 1:
            raise ValueError(
                f"bug {bug!r} of {self.names[0]!r}: {right!r} is there {whole.count(right)} times"
            )
        return whole.replace(right, wrong)


def function_of(source: str, name: str) -> Callable[..., Any]:
    """The function that a source of this package defines."""
    place: dict[str, Any] = {}
    exec(source, place)  # written in this folder; nothing of a policy's comes here
    found: Callable[..., Any] = place[name]
    return found


def called(function: Callable[..., Any], arguments: Arguments) -> Any:
    """What it returns, or the name of what it raises."""
    try:
        return function(*(item.copy() if isinstance(item, list | dict) else item for item in arguments))
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        return f"raises {type(error).__name__}"
