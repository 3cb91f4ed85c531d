"""From the text of a last turn to the one value in it, by declared rules only.

Invariant: an answer is read whole or refused with a reason; nothing is searched for in surrounding prose, so a
text with two candidates ("5 or 6") or with words around one is no answer. Work is linear in a capped length.

What is taken off, in this order: white space; a prefix `Answer:`, `Final answer:`, `The answer is` (any case);
one pair of wrapping marks (`**…**`, `` `…` ``, `$…$`, double or single quotes); one closing full stop.

Where a task declares it, the answer is first taken out of a longer text by its marks (`Extraction`). All answers that
are marked in the same way are returned: whether they agree is for the type to say, and where they do not there is none.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

Extraction = Literal["whole", "boxed", "marked", "boxed_or_last_line"]
r"""`whole`: the text is the answer. `boxed`: what stands in `\boxed{…}`, nothing else counts. `marked`: boxed; or else
behind `####` or on lines that begin with `Answer:`; or else the whole text. `boxed_or_last_line`: as `marked`, but the
last line instead of the whole text."""

MAX_TEXT_CHARS = 200_000
"""Of a text that an answer is taken from."""
MAX_CANDIDATES = 5
"""Different ones: each is compared with the last, which may be costly."""
_PREFIX = re.compile(r"(?:(?:the )?(?:final )?answer(?: is:?|:))\s*", re.IGNORECASE)
_LINE_PREFIX = re.compile(
    r"[*_# ]{0,8}(?:(?:the )?(?:final )?answer(?: is:|:| is)[*_]{0,3}\s*){1,2}", re.IGNORECASE
)
_HOPE = re.compile(r"\. I hope it is correct\.? {0,4}$")
"""How answers to the prompt of Lewkowycz et al. (arXiv:2206.14858) end."""
_WRAPPERS = (("**", "**"), ("`", "`"), ("$", "$"), ('"', '"'), ("'", "'"), ("“", "”"))
_BOX = re.compile(r"\\f?boxed\s*(?:(\{)|([0-9A-Za-z]))")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_HASHES = "####"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a text is no answer of the declared type. A verdict on the policy, not a fault of ours."""

    reason: str


def extract(text: str, policy: Extraction) -> tuple[str, ...] | Refusal:
    """The candidates that `text` marks as its answer, at least one; each different text once. Never raises."""
    if policy == "whole":
        return (text,)
    if len(text) > MAX_TEXT_CHARS:
        return Refusal(f"the text has {len(text)} characters: the limit is {MAX_TEXT_CHARS}")
    found = _boxed(text)
    if isinstance(found, Refusal):
        return found
    if not found and policy == "boxed":
        return Refusal("no answer: nothing is boxed")
    found = found or _lines(text)
    if not found:
        rest = text.strip()
        found = [rest.splitlines()[-1] if rest and policy == "boxed_or_last_line" else rest]
    distinct = tuple({" ".join(candidate.split()): candidate.strip() for candidate in found}.values())
    if len(distinct) > MAX_CANDIDATES:
        return Refusal(f"{len(distinct)} different answers are marked: an answer holds one")
    return distinct


def read_answer(text: str, max_chars: int) -> str | Refusal:
    """The bare answer in `text`, composed (Unicode NFC), or the reason why there is none. Never raises."""
    if len(text) > max_chars:
        return Refusal(f"the answer has {len(text)} characters: the limit is {max_chars}")
    bare = unicodedata.normalize("NFC", text).strip()
    prefix = _PREFIX.match(bare)
    if prefix:
        bare = bare[prefix.end() :]
    bare = _without_stop(_unwrapped(_without_stop(bare)))
    if not bare:
        return Refusal("no answer")
    return bare


def shown(text: str, limit: int = 40) -> str:
    """A short, printable form of hostile text, for reasons and logs."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return ascii(cut) if not cut.isprintable() else repr(cut)


def _boxed(text: str) -> list[str] | Refusal:
    r"""The contents of every outermost `\boxed{…}`. One pass: a brace is looked at once."""
    out, at = [], 0
    while box := _BOX.search(text, at):
        if box[2]:
            out.append(box[2])
            at = box.end()
            continue
        end = _closing(text, box.end())
        if end is None:
            return Refusal("a box that is not closed")
        out.append(text[box.end() : end])
        at = end
    return out


def _closing(text: str, start: int) -> int | None:
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return None


def _lines(text: str) -> list[str]:
    """What follows `####`; or else the lines that say they are the answer."""
    lines = text.splitlines()
    after = [line.rpartition(_HASHES)[2] for line in lines if _HASHES in line]
    hashed = [rest for rest in after if rest.strip()]
    if hashed:
        return hashed
    matches = ((line, _LINE_PREFIX.match(line)) for line in lines)
    found = [_HOPE.sub("", line[match.end() :]).strip(" *_") for line, match in matches if match]
    return [rest for rest in found if rest]


def _unwrapped(text: str) -> str:
    for opening, closing in _WRAPPERS:
        inner = text[len(opening) : len(text) - len(closing)]
        long_enough = len(text) > len(opening) + len(closing)
        if long_enough and text.startswith(opening) and text.endswith(closing) and opening not in inner:
            return inner.strip()
    return text


def _without_stop(text: str) -> str:
    """One full stop less; an ellipsis stays, and is then refused by the type."""
    return text[:-1].rstrip() if text.endswith(".") and not text.endswith("..") else text
