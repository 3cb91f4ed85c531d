"""Notes of one attempt: what left its context, in the sandbox, and the tool that finds it again.

Invariant: a note is written before the context loses what is in it; what the search returns is verbatim.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from services.rollout.context.bm25 import Bm25
from services.rollout.context.texts import chunks
from services.rollout.tools.tool import Tool, make_tool
from shared.domains.tools import ToolRefusal
from shared.sandbox.sessions.files import WorkspaceRefusal
from shared.sandbox.sessions.session import Session

FOLDER = ".notes"
MOST_FOUND = 8


class Notes:
    """`session` None: they are kept here alone, and only `recall` reads them."""

    def __init__(self, session: Session | None = None) -> None:
        self._session = session
        self._index = Bm25()
        self._chunks: list[str] = []

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def in_files(self) -> bool:
        return self._session is not None

    async def add(self, title: str, text: str) -> None:
        """Raises `SandboxFault`. A workspace that is full keeps no file; the note can still be searched."""
        first = len(self._chunks) + 1
        parts = chunks(text)
        for part in parts:
            self._index.add(f"{title}\n{part}")
            self._chunks.append(part)
        if self._session is None or not parts:
            return
        files = {
            f"{FOLDER}/{number:05d}.md": f"{title}\n{part}".encode("utf-8", "replace")
            for number, part in enumerate(parts, start=first)
        }
        try:
            await self._session.write_all(files)
        except WorkspaceRefusal:
            return

    def tool(self) -> Tool:
        return make_tool(self.recall)

    async def recall(
        self,
        query: Annotated[str, "words that the passage has"],
        most: Annotated[int, "passages to return", Field(ge=1, le=MOST_FOUND)] = 3,
    ) -> str:
        """Searches your notes: everything from earlier in this conversation that is no longer shown."""
        if not self._chunks:
            raise ToolRefusal("there are no notes yet: all that was said is still shown")
        found = self._index.search(query, most)
        if not found:
            return f"[none of {len(self._chunks)} notes has a word of {query!r}]"
        return "\n\n".join(f"[note {number + 1}]\n{self._chunks[number]}" for number, _ in found)
