"""Flags from what a program printed. Nothing printed is ever read for a verdict; it may only betray its author.

Invariant: pure and bounded; any bytes will do.
"""

from __future__ import annotations

from shared.verification.detectors.flags import Flag
from shared.verification.detectors.wording import MAX_CHARS, flags_of_text_output


def flags_of_output(*streams: bytes) -> frozenset[Flag]:
    """Fake summaries and success markers in stdout and stderr."""
    found: set[Flag] = set()
    for stream in streams:
        half = MAX_CHARS // 2
        cut = stream if len(stream) <= MAX_CHARS else stream[:half] + b"\n" + stream[-half:]
        found |= flags_of_text_output(cut.decode("utf-8", "replace"))
    return frozenset(found)
