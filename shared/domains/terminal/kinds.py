"""Every kind of job, by name, and how hard a run wants them."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from shared.domains.base import Difficulty
from shared.domains.terminal.moving import MOVING
from shared.domains.terminal.places import PLACES
from shared.domains.terminal.puzzle import WORDS, Make
from shared.domains.terminal.tables import TABLES
from shared.domains.terminal.texts import TEXTS
from shared.plain_errors import nearest_or_all

KINDS: dict[str, Make] = {**MOVING, **PLACES, **TEXTS, **TABLES}
WORDS_OF_A_JOB = 6
"""Most names that one job uses up."""


class TerminalDifficulty(Difficulty):
    """`jobs`: to be done one after another. `others`: files that nobody asked about. `lines`: of a text. `words`: how
    many different words there are; few make names easier to learn. `kinds`: of jobs; none named is all."""

    jobs: int = Field(default=1, ge=1, le=5)
    others: int = Field(default=1, ge=0, le=10)
    lines: int = Field(default=4, ge=2, le=12)
    words: int = Field(default=len(WORDS), ge=16, le=len(WORDS))
    kinds: tuple[str, ...] = ()

    @field_validator("kinds")
    @classmethod
    def _known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kind not in KINDS:
                raise ValueError(f"there is no kind {kind!r}{nearest_or_all(kind, KINDS)}")
        return kinds

    @model_validator(mode="after")
    def _enough_words(self) -> TerminalDifficulty:
        needed = self.jobs * WORDS_OF_A_JOB + self.others + 1
        if self.words < needed:
            raise ValueError(
                f"words is {self.words}, and {self.jobs} jobs with {self.others} other files use up to {needed} names: "
                "raise words"
            )
        return self
