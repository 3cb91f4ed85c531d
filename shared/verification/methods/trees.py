"""Trees of files as plain data.

Invariant: a path is relative and inside the tree; nothing here touches a file system, so no link is ever followed.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_DEPTH = 256
"""Of a path: every folder above it is looked at, under every pattern."""
Kind = Literal["file", "folder", "link", "other"]


def bytes_of(text: str) -> bytes:
    """UTF-8; of a lone surrogate the byte that it stands for (PEP 383), or where it stands for none its own three
    bytes. Never raises."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _is_no_byte(character: str) -> bool:
    """A lone surrogate that stands for no byte of a name (PEP 383)."""
    return "\ud800" <= character <= "\udfff" and not "\udc80" <= character <= "\udcff"


class Entry(BaseModel):
    """One path. `text` or `base64` is a file's content, `target` a link's; `mode` is its permission bits, octal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    kind: Kind = "file"
    mode: str | None = Field(default=None, pattern=r"^0?[0-7]{3,4}$")
    text: str | None = None
    base64: str | None = None
    target: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        problem = self.problem()
        if problem is not None:
            raise ValueError(problem)
        return self

    def problem(self) -> str | None:
        """Why it is no entry of a tree."""
        pure, shown = PurePosixPath(self.path), ascii(self.path[:100])
        if any(map(_is_no_byte, self.path)):
            return f"path {shown} is no text"
        if not self.path or pure.is_absolute() or ".." in pure.parts or "\0" in self.path or not pure.parts:
            return f"path {shown} leaves the tree"
        if len(pure.parts) > MAX_DEPTH:
            return f"path {shown} is over {MAX_DEPTH} folders deep"
        if self.kind != "file" and (self.text is not None or self.base64 is not None):
            return f"{shown} is a {self.kind}: only a file has content"
        try:
            self.content()
        except (binascii.Error, ValueError):
            return f"the content of {shown} is no base64"
        return None

    def content(self) -> bytes | None:
        """None where none is declared."""
        if self.base64 is not None:
            return base64.b64decode(self.base64, validate=True)
        return None if self.text is None else bytes_of(self.text)

    def permissions(self) -> int | None:
        return None if self.mode is None else int(self.mode, 8)

    @property
    def name(self) -> str:
        """The path in its plain form: `./a//b` is `a/b`."""
        return str(PurePosixPath(self.path))


class FoundEntry(Entry):
    """One path of the policy's: its `problem` is for the check to see, and no reason to refuse the request."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        return self


def unplaceable(files: Mapping[str, str]) -> str | None:
    """Why the policy's files (path → text) are no tree."""
    found = (FoundEntry(path=path).problem() for path in files)
    return next((problem for problem in found if problem), None)


def twice(entries: Iterable[Entry]) -> str | None:
    """The first name that stands there twice, in their order."""
    seen: set[str] = set()
    for entry in entries:
        name = entry.name
        if name in seen:
            return name
        seen.add(name)
    return None


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether a path, or a folder above it, fits one of the shell patterns."""
    if not patterns:
        return False
    parts = PurePosixPath(path).parts
    above = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    return any(fnmatch.fnmatchcase(part, pattern) for pattern in patterns for part in above)
