"""Short forms and chunks of text.

Invariant: a digest is never longer than its text; the chunks of a text put together are the text.
"""

from __future__ import annotations

DIGEST_CHARACTERS = 240
CHUNK_CHARACTERS = 1200


def digest(text: str, most: int = DIGEST_CHARACTERS) -> str:
    """What it was, how it began and how it ended, in about `most` characters; the text itself where that is shorter."""
    lines = text.count("\n") + 1
    head, tail = " ".join(text[: most // 2].split()), " ".join(text[len(text) - most // 2 :].split())
    short = f"[shortened: {len(text)} characters in {lines} lines, from {head!r} to {tail!r}]"
    return short if len(short) < len(text) else text


def chunks(text: str, most: int = CHUNK_CHARACTERS) -> list[str]:
    """Pieces of at most `most` characters, cut at the ends of paragraphs, else lines, else words, where there are any."""
    found: list[str] = []
    at = 0
    while len(text) - at > most:
        end = next(
            (
                place + len(mark)
                for mark in ("\n\n", "\n", " ")
                if (place := text.rfind(mark, at + most // 2, at + most - len(mark) + 1)) >= 0
            ),
            at + most,
        )
        found.append(text[at:end])
        at = end
    return [*found, text[at:]] if at < len(text) else found
