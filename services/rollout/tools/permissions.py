"""What the tools of an attempt may touch.

Invariant: a permission that a tool cannot keep is refused when the tools are made, never broken in silence: a shell
sees the whole workspace, so narrower file roots and a free shell exclude each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from shared.domains.tools import ToolRefusal
from shared.errors import ConfigError
from shared.sandbox.command import WORK, inside

EVERYWHERE = (".",)


@dataclass(frozen=True, slots=True)
class Permissions:
    """Of one attempt's tools, in the work folder of its session.

    `read` and `write`: folders (or files), relative. `commands`: programs that `bash` may start; empty is any, through
    a shell; otherwise these alone and without a shell. `network`: tools that reach out of the sandbox are allowed
    (jails themselves have none).
    """

    read: tuple[str, ...] = EVERYWHERE
    write: tuple[str, ...] = EVERYWHERE
    commands: tuple[str, ...] = ()
    network: bool = False

    def __post_init__(self) -> None:
        for root in (*self.read, *self.write):
            if root != ".":
                inside(root)

    @property
    def everywhere(self) -> bool:
        return "." in self.read and "." in self.write

    def readable(self, path: str) -> str:
        """`path` relative to the work folder. Raises `ToolRefusal` where it may not be read."""
        return _within(path, self.read, "read")

    def writable(self, path: str) -> str:
        """Raises `ToolRefusal` where it may not be written."""
        return _within(path, self.write, "written")

    def check_program(self, name: str) -> None:
        """Raises `ToolRefusal` for a program that is not among `commands`."""
        if self.commands and name not in self.commands:
            raise ToolRefusal(f"program {name!r} is not allowed here; allowed: {', '.join(self.commands)}")


def _within(path: str, roots: tuple[str, ...], verb: str) -> str:
    relative = relative_path(path)
    if any(root == "." or PurePosixPath(relative).is_relative_to(root) for root in roots):
        return relative
    raise ToolRefusal(f"{path!r} may not be {verb}; allowed: {', '.join(roots) or 'nothing'}")


def relative_path(path: str) -> str:
    """As the session takes it: `/work/a` and `a` are one file. Raises `ToolRefusal` for a path that leaves."""
    pure = PurePosixPath(path)
    if pure.is_absolute() and pure.is_relative_to(WORK):
        pure = pure.relative_to(WORK)
    if not pure.parts:
        return "."
    try:
        return inside(str(pure))
    except ConfigError as error:
        raise ToolRefusal(str(error)) from error
