"""Which weights sampled which token, where an engine must run in order to prove its weights.

Invariant: weights get a label before their first token; a token counts only once its label was proven, and then has
the version that the label was loaded as. What a refuted label sampled is cut off, and with it all that came after.
Confined to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Labels:
    def __init__(self) -> None:
        self._verdicts: dict[str, asyncio.Future[int | None]] = {}

    def new(self, version: int) -> str:
        """A label never used before, for a load of `version` that has yet to prove itself."""
        label = f"{version}/{len(self._verdicts)}"
        self._verdicts[label] = asyncio.get_running_loop().create_future()
        return label

    def proven(self, label: str, version: int) -> None:
        self._verdicts[label].set_result(version)

    def refuted(self, label: str) -> None:
        self._verdicts[label].set_result(None)

    async def settle(self, spans: Iterable[tuple[str, int]]) -> list[int]:
        """The versions of a sequence's first tokens, from spans of (label, length): as many as count."""
        versions: list[int] = []
        for label, length in spans:
            version = await asyncio.shield(self._verdicts[label])
            if version is None:
                break
            versions += [version] * length
        return versions
