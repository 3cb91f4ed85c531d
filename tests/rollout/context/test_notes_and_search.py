"""Digests, chunks, the search among notes, and the notes in a real workspace."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollout.context.bm25 import K1, B, Bm25, words
from services.rollout.context.notes import FOLDER, Notes
from services.rollout.context.texts import chunks, digest
from shared.domains.tools import ToolRefusal
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from tests.sandbox.machines import MODES, settings_of

letters = st.text(st.sampled_from("ab \n.é"), max_size=400)


@given(letters, st.integers(1, 60))
def test_chunks_put_together_are_the_text(text: str, most: int) -> None:
    found = chunks(text, most)
    assert "".join(found) == text
    assert all(0 < len(chunk) <= most for chunk in found)


@given(letters)
def test_a_digest_is_never_longer(text: str) -> None:
    assert len(digest(text, 40)) <= len(text)


def test_a_digest_says_what_it_was() -> None:
    text = "\n".join(f"row {number}" for number in range(1000))
    assert digest(text, 40) == (
        "[shortened: 7889 characters in 1000 lines, from 'row 0 row 1 row 2 ro' to '997 row 998 row 999']"
    )


def by_hand(query: str, texts: list[str]) -> list[float]:
    """The formula of Robertson and Zaragoza (2009), equation 3.15, written out."""
    bags = [words(text) for text in texts]
    mean = sum(map(len, bags)) / len(bags) or 1.0
    scores = []
    for bag in bags:
        score = 0.0
        for word in dict.fromkeys(words(query)):
            having = sum(word in other for other in bags)
            if word in bag:
                count = bag.count(word)
                rarity = math.log(1 + (len(bags) - having + 0.5) / (having + 0.5))
                score += rarity * count * (K1 + 1) / (count + K1 * (1 - B + B * len(bag) / mean))
        scores.append(score)
    return scores


sentences = st.lists(st.sampled_from(["red", "green", "blue", "cat", "dog"]), max_size=8).map(" ".join)


@given(sentences, st.lists(sentences, min_size=1, max_size=8))
def test_scores_are_the_formulas(query: str, texts: list[str]) -> None:
    index = Bm25()
    for text in texts:
        index.add(text)
    scores = by_hand(query, texts)
    found = index.search(query, len(texts))
    assert {number for number, _ in found} == {number for number, score in enumerate(scores) if score > 0}
    for number, score in found:
        assert score == pytest.approx(scores[number])
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert index.search(query, 2) == found[:2]


def test_the_rare_word_decides() -> None:
    index = Bm25()
    for text in ("the server runs on the port", "the port is 8471 for the database", "the the the"):
        index.add(text)
    assert index.search("the database port", 1)[0][0] == 1
    assert index.search("nothing of it", 3) == []


def test_notes_are_in_the_workspace_and_found_again() -> None:
    async def work() -> None:
        async with (
            Sandbox(settings_of(MODES[0])) as sandbox,
            await sandbox.session(limits=Limits()) as session,
        ):
            notes = Notes(session)
            with pytest.raises(ToolRefusal, match="no notes yet"):
                await notes.recall("port")
            filler = "\n\n".join(f"paragraph {number} says nothing" for number in range(200))
            await notes.add("tool", f"{filler}\n\nthe database listens on 8471\n\n{filler}")
            assert len(notes) > 5
            found = await notes.tool().call({"query": "database port", "most": 1})
            assert isinstance(found, str)
            assert "8471" in found
            number = int(found.split("]")[0].removeprefix("[note "))
            written = await session.read(f"{FOLDER}/{number:05d}.md")
            assert b"8471" in written
            assert written.decode().removeprefix("tool\n") in found
            assert "none of" in await notes.recall("zebra")

    asyncio.run(work())


def test_a_full_workspace_keeps_the_note_in_memory() -> None:
    async def work() -> None:
        async with (
            Sandbox(settings_of(MODES[0])) as sandbox,
            await sandbox.session(limits=Limits(disk_mb=1)) as session,
        ):
            notes = Notes(session)
            await notes.add("tool", "x " * (1 << 20) + "needle")
            assert "needle" in await notes.recall("needle")

    asyncio.run(work())
