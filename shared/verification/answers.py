"""From the text of a last turn to the one value in it, by declared rules only.

Invariant: an answer is read whole or refused with a reason; nothing is searched for in surrounding prose, so a
text with two candidates ("5 or 6") or with words around one is no answer. Work is linear in a capped length.

What is taken off, in this order: white space; a prefix `Answer:`, `Final answer:`, `The answer is` (any case);
one pair of wrapping marks (`**…**`, `` `…` ``, `$…$`, double or single quotes); one closing full stop.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_PREFIX = re.compile(r"(?:(?:the )?(?:final )?answer(?: is:?|:))\s*", re.IGNORECASE)
_WRAPPERS = (("**", "**"), ("`", "`"), ("$", "$"), ('"', '"'), ("'", "'"), ("“", "”"))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a text is no answer of the declared type. A verdict on the policy, not a fault of ours."""

    reason: str


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
