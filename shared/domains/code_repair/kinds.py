"""Every kind of instance, and how hard a run wants them.

Invariant: a kind is a routine and a bug of it, `total/start`; each changes one line.
"""

from __future__ import annotations

from pydantic import Field, field_validator

from shared.domains.base import Difficulty
from shared.domains.code_repair.numbers import NUMBERS
from shared.domains.code_repair.routine import Routine
from shared.domains.code_repair.texts import TEXTS
from shared.plain_errors import nearest_or_all

ROUTINES: dict[str, Routine] = {**NUMBERS, **TEXTS}
KINDS: tuple[str, ...] = tuple(f"{name}/{bug}" for name, routine in ROUTINES.items() for bug in routine.bugs)


class RepairDifficulty(Difficulty):
    """`functions`: of the package, one of them broken. `modules`: over which they are spread. `shown`: calls in the
    failing test that is shown. `kinds`: `routine` or `routine/bug`; none named is all."""

    functions: int = Field(default=2, ge=1, le=6)
    modules: int = Field(default=1, ge=1, le=3)
    shown: int = Field(default=2, ge=1, le=4)
    kinds: tuple[str, ...] = ()

    @field_validator("kinds")
    @classmethod
    def _known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kind not in ROUTINES and kind not in KINDS:
                raise ValueError(f"there is no kind {kind!r}{nearest_or_all(kind, (*ROUTINES, *KINDS))}")
        return kinds

    def chosen(self) -> list[str]:
        """Kinds with their bugs."""
        wanted = self.kinds or KINDS
        return [kind for kind in KINDS if kind in wanted or kind.partition("/")[0] in wanted]
