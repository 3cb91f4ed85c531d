"""Where in a rendered conversation each message's content stands.

Invariant: places are in the order of the messages and do not overlap; a place is called exact only where the text
there is the content itself. None where the template does not write every message once, in order.

Found by a second rendering with marks in the place of all contents: what stands between the marks is the template's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Contents = Sequence[str]
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


@dataclass(frozen=True, slots=True)
class Place:
    """`text[start:end]` is what became of a content; `exact`: nothing became of it."""

    start: int
    end: int
    exact: bool


def layout(text: str, contents: Contents, render: Callable[[Contents], str]) -> list[Place] | None:
    """`render` gives the conversation with other contents; `text` is what it gave with `contents`. Raises its errors."""
    pieces = _MARK.split(render([f"{_OPEN}{number}{_CLOSE}" for number in range(len(contents))]))
    between, numbers = pieces[0::2], pieces[1::2]
    if numbers != [str(number) for number in range(len(contents))]:
        return None
    if not text.startswith(between[0]):
        return None
    places: list[Place] = []
    at = len(between[0])
    for number, content in enumerate(contents):
        after = between[number + 1]
        place = _place(text, at, content, after, last=number == len(contents) - 1)
        if place is None:
            return None
        places.append(place)
        at = place.end + len(after)
    return places if at == len(text) else None


def _place(text: str, at: int, content: str, after: str, *, last: bool) -> Place | None:
    """The content that begins at `at`, with `after` behind it."""
    for shown in dict.fromkeys((content, content.strip())):
        end = at + len(shown)
        if (
            text.startswith(shown, at)
            and text.startswith(after, end)
            and (not last or end + len(after) == len(text))
        ):
            return Place(at, end, shown == content)
    # Rewritten: as far as the template's own text that comes next, if it has any.
    end = len(text) - len(after) if last else text.find(after, at) if after else -1
    return Place(at, end, False) if end >= at and text.startswith(after, end) else None
