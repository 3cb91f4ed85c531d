"""A document of one fact a line, and the one fact that is asked for.

Invariant: the document states the asked fact once, and every other value of the asked field's type differs
from it, so no other line answers the question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field as Bounded
from pydantic import model_validator

from shared.domains.base import Difficulty
from shared.domains.draw import Draw
from shared.domains.extraction.fields import COMPARATORS, FIELDS, PEOPLE, Field, FieldType

Layout = Literal["list", "sentence"]


class ExtractionDifficulty(Difficulty):
    """`lines` facts on the person asked about, `distractors` facts on other people, all of `types`.

    `layouts`: `list` is "Ada's age: 41", `sentence` is "Ada's age is 41."
    """

    lines: int = Bounded(default=2, ge=1, le=10)
    types: tuple[FieldType, ...] = Bounded(default=("text", "integer"), min_length=1, max_length=4)
    distractors: int = Bounded(default=0, ge=0, le=12)
    layouts: tuple[Layout, ...] = Bounded(default=("list",), min_length=1, max_length=2)

    @model_validator(mode="after")
    def _enough_fields(self) -> ExtractionDifficulty:
        known = len(self.fields())
        if self.lines > known:
            raise ValueError(
                f"lines is {self.lines}, and types {', '.join(self.types)} have {known} fields: add a type"
            )
        return self

    def fields(self) -> tuple[Field, ...]:
        return tuple(field for field in FIELDS if field.type in self.types)


@dataclass(frozen=True, slots=True)
class Fact:
    person: str
    field: Field
    value: str

    def line(self, layout: Layout) -> str:
        subject = f"{self.person}'s {self.field.name}"
        return f"{subject}: {self.value}" if layout == "list" else f"{subject} is {self.value}."


@dataclass(frozen=True, slots=True)
class Document:
    facts: tuple[Fact, ...]
    asked: Fact
    layout: Layout

    def text(self) -> str:
        return "\n".join(fact.line(self.layout) for fact in self.facts)

    def others(self) -> tuple[Fact, ...]:
        return tuple(fact for fact in self.facts if fact is not self.asked)


def draw_document(draw: Draw, difficulty: ExtractionDifficulty) -> Document:
    person, *others = draw.shuffled(PEOPLE)
    fields = draw.sample(difficulty.fields(), difficulty.lines)
    asked = Fact(person, fields[0], fields[0].draw(draw))
    facts = [asked] + [_other(draw, person, field, asked) for field in fields[1:]]
    for number in range(difficulty.distractors):
        field = asked.field if number % 2 == 0 else draw.choice(difficulty.fields())
        facts.append(_other(draw, others[number], field, asked))
    return Document(tuple(draw.shuffled(facts)), asked, draw.choice(difficulty.layouts))


def _other(draw: Draw, person: str, field: Field, asked: Fact) -> Fact:
    """A fact that does not answer the question."""
    while True:
        value = field.draw(draw)
        same_type = field.type == asked.field.type
        if not same_type or not COMPARATORS[field.type].compare(value, asked.value).equal:
            return Fact(person, field, value)
