"""The tools of a sandbox session: `bash`, `python`, `read_file`, `write_file`, `search_files`, and `submit`.

Invariant: the policy's code and patterns run in the jail only; from outside files are read and written by the
session, which follows no link. Only what may be repeated is repeated after a fault.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from services.rollout.tools.budget import OutputBudget
from services.rollout.tools.commands import told
from services.rollout.tools.permissions import Permissions, relative_path
from services.rollout.tools.tool import Retry, Tool, make_tool
from shared.domains.tools import Submission, ToolRefusal
from shared.domains.workspace_tools import SHELLS, WORKSPACE_TOOLS, shell
from shared.errors import ConfigError
from shared.sandbox.command import Command
from shared.sandbox.limits import Limits
from shared.sandbox.sessions.session import Session

OUR_SHARE_S = 30.0
"""Over a command's own limit: for jails to be made on a machine that is busy. Past it the sandbox hangs."""
_MOST_LINES = 400
_MOST_BYTES = 4 << 20
_REPEATED = Retry(attempts=3)


@dataclass(frozen=True, slots=True)
class WorkspaceTools:
    """Of one session. `limits`: of each command."""

    session: Session | None
    permissions: Permissions = field(default_factory=Permissions)
    limits: Limits = field(default_factory=Limits)
    output: OutputBudget = field(default_factory=OutputBudget)

    def make(self, name: str) -> Tool:
        """Raises `ConfigError` for a tool that is none of ours, or that these permissions exclude."""
        if name not in WORKSPACE_TOOLS:
            raise ConfigError(
                f"tool {name!r} is not known; of a sandbox there are: {', '.join(WORKSPACE_TOOLS)}"
            )
        if name == "submit":
            return make_tool(submit)
        if self.session is None:
            raise ConfigError(f"tool {name!r} works in a sandbox, and this attempt has none")
        free = not self.permissions.commands
        if name in SHELLS and free and not self.permissions.everywhere:
            raise ConfigError(
                f"tool {name!r} sees the whole workspace: it cannot keep the file roots {self.permissions.read}, "
                f"{self.permissions.write}; leave it out, or name its commands"
            )
        if name == "python" and not free and "python3" not in self.permissions.commands:
            raise ConfigError("tool 'python' runs python3, which is not among the commands that are allowed")
        repeated = name in ("read_file", "write_file", "search_files")
        return make_tool(
            getattr(self, name),
            timeout_s=self.limits.wall_s + OUR_SHARE_S,
            overrun="ours",
            retry=_REPEATED if repeated else Retry(),
            output=self.output,
        )

    async def bash(self, command: Annotated[str, "what to run"]) -> str:
        """Runs a shell command in the work folder and returns what it printed."""
        if not self.permissions.commands:
            return await self._run(shell(command))
        try:
            argv = tuple(shlex.split(command))
        except ValueError as error:
            raise ToolRefusal(f"the command cannot be read: {error}; close every quote") from error
        if not argv:
            raise ToolRefusal("the command is empty")
        self.permissions.check_program(argv[0])
        return await self._run(argv)

    async def python(self, code: Annotated[str, "a whole program"]) -> str:
        """Runs a Python program in the work folder and returns what it printed."""
        return await self._run(("python3", "-"), stdin=_bytes(code))

    async def read_file(
        self,
        path: Annotated[str, "relative to the work folder"],
        first_line: Annotated[int, "counted from 1", Field(ge=1)] = 1,
        lines: Annotated[int, "how many", Field(ge=1)] = _MOST_LINES,
    ) -> str:
        """Returns a text file, or some of its lines."""
        place = self.permissions.readable(path)
        contents = await self._opened().read(_file(place, path), _MOST_BYTES)
        found = contents.decode("utf-8", "replace").split("\n")
        part = found[first_line - 1 : first_line - 1 + min(lines, _MOST_LINES)]
        if not part:
            raise ToolRefusal(f"{path!r} has {len(found)} lines: there is no line {first_line}")
        last = first_line - 1 + len(part)
        more = "" if last >= len(found) else f"\n[lines {first_line} to {last} of {len(found)}]"
        return "\n".join(part) + more

    async def write_file(
        self, path: Annotated[str, "relative to the work folder"], content: Annotated[str, "the whole file"]
    ) -> str:
        """Writes a file, and the folders above it; what was there is replaced."""
        place = self.permissions.writable(path)
        contents = _bytes(content)
        await self._opened().write(_file(place, path), contents)
        return f"wrote {len(contents)} bytes to {place}"

    async def search_files(
        self,
        pattern: Annotated[str, "an extended regular expression, as of grep -E"],
        path: Annotated[str, "a file or folder, relative to the work folder"] = ".",
    ) -> str:
        """Returns the lines of files that match a pattern, each with its file and line number."""
        place = self.permissions.readable(path)
        # In the jail: a pattern that takes for ever takes its own time, not ours.
        argv = ("grep", "-rnIE", "--max-count=50", "-e", _startable(pattern), "--", place)
        result = await self._opened().exec(Command(argv, environment={"LC_ALL": "C.UTF-8"}), self.limits)
        if result.exit_code == 1 and not result.stderr:
            return f"[no line matches {pattern!r} in {place}]"
        return told(result, self.limits)

    async def _run(self, argv: tuple[str, ...], stdin: bytes = b"") -> str:
        for text in argv:
            _startable(text)
        return told(await self._opened().exec(Command(argv, stdin=stdin), self.limits), self.limits)

    def _opened(self) -> Session:
        if self.session is None:
            raise ConfigError("these tools have no session")
        return self.session


async def submit(
    answer: Annotated[str, "the final answer; empty where the work itself is it"],
) -> Submission:
    """Ends the attempt: call it once, when all is done."""
    return Submission(answer)


def with_files(files: Mapping[str, str]) -> dict[str, bytes]:
    """A task's files as a session takes them. Raises `ToolRefusal` for a path that leaves the work folder."""
    return {relative_path(path): _bytes(contents) for path, contents in files.items()}


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _file(place: str, path: str) -> str:
    if place == ".":
        raise ToolRefusal(f"{path!r} is the work folder: name a file")
    return place


def _startable(text: str) -> str:
    """Raises `ToolRefusal` for what cannot be an argument of a program. Linux: 128 KiB each (MAX_ARG_STRLEN)."""
    if "\0" in text:
        raise ToolRefusal("a command holds no NUL character: remove it")
    if len(_bytes(text)) >= 128 * 1024:
        raise ToolRefusal("a command has at most 128 KiB: write a file, and run it")
    return text
