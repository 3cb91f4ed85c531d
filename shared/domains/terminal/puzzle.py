"""One job in a workspace, and the scene that several jobs share.

Invariant: no two jobs of a scene touch a file of the same name, so their expected states can be put together; words
are letters only, and none is part of another, so no shell or pattern reads them in another way than a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shared.domains.draw import Draw

WORDS = (
    "apple", "river", "stone", "cloud", "tiger", "piano", "lemon", "brick", "candle", "desert", "engine", "forest",
    "garden", "hammer", "island", "jacket", "kettle", "ladder", "magnet", "needle", "orange", "pencil", "quartz", "rabbit",
    "saddle", "temple", "umbra", "violet", "window", "yellow", "zebra", "anchor", "basket", "copper", "dragon", "falcon",
    "goblet", "harbor", "insect", "jungle", "kitten", "lagoon", "marble", "napkin", "oyster", "pepper", "quiver", "rocket",
    "silver", "tunnel", "urchin", "velvet", "walnut", "xenon", "yogurt", "zipper", "almond", "bottle", "cactus", "domino",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Puzzle:
    """`files`: at the start; `after`: the text files there instead at the end. `command`: does it. `wrong`: comes close
    and does not. `compare`: how a made file's content is compared, where not byte by byte. `modes`: octal."""

    instruction: str
    files: Mapping[str, str]
    after: Mapping[str, str]
    command: str
    wrong: str
    links: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    modes: Mapping[str, str] = field(default_factory=dict)
    compare: Mapping[str, str] = field(default_factory=dict)


class Scene:
    """What jobs are made of. `lines`: about how long texts are."""

    def __init__(self, draw: Draw, words: int, lines: int) -> None:
        self.draw = draw
        self.lines = lines
        self._pool = WORDS[:words]
        self._unused = draw.shuffled(self._pool)

    def word(self) -> str:
        """One that nothing else in this scene is called."""
        return self._unused.pop()

    def file(self, suffix: str = ".txt") -> str:
        return self.word() + suffix

    def text(self, count: int = 0) -> list[str]:
        """Lines of two words each; no two are equal, and they are not in order."""
        count = count or self.lines
        firsts = sorted(self.draw.sample(self._pool, count))
        found = [f"{first} {self.draw.choice(self._pool)}" for first in firsts]
        turned = self.draw.integer(1, count - 1) if count > 1 else 0
        return found[turned:] + found[:turned]

    def other_word(self, lines: list[str]) -> str:
        """One that none of these lines has."""
        used = {word for line in lines for word in line.split()}
        return self.draw.choice([word for word in WORDS if word not in used])


Make = Callable[[Scene], Puzzle]


def joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
