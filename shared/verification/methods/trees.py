"""Trees of files as plain data.

Invariant: a path is relative and inside the tree; nothing here touches a file system, so no link is ever followed.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
from pathlib import PurePosixPath
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["file", "folder", "link", "other"]


def bytes_of(text: str) -> bytes:
    """UTF-8; of a lone surrogate the byte that it stands for (PEP 383), or where it stands for none its own three
    bytes. Never raises."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


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
        pure = PurePosixPath(self.path)
        if not self.path or pure.is_absolute() or ".." in pure.parts or "\0" in self.path or not pure.parts:
            raise ValueError(f"path {self.path!r} leaves the tree")
        if self.kind != "file" and (self.text is not None or self.base64 is not None):
            raise ValueError(f"{self.path!r} is a {self.kind}: only a file has content")
        try:
            self.content()
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"the content of {self.path!r} is no base64") from error
        return self

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


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether a path, or a folder above it, fits one of the shell patterns."""
    parts = PurePosixPath(path).parts
    above = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    return any(fnmatch.fnmatchcase(part, pattern) for pattern in patterns for part in above)
