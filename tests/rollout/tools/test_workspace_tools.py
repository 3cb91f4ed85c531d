"""The sandbox's tools on a real session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from services.rollout.tools.budget import OutputBudget
from services.rollout.tools.permissions import Permissions
from services.rollout.tools.workspace import WorkspaceTools, with_files
from shared.domains.tools import Submission, ToolRefusal
from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.sandbox.sessions.session import Session
from tests.sandbox.machines import MODES, settings_of

LIMITS = Limits(wall_s=5.0, output_kb=64)
FILES = with_files({"src/a.py": "import os\nprint('one')\n", "notes.txt": "one\ntwo\nthree\n"})


def with_session(work: Callable[[Session], Awaitable[None]]) -> None:
    async def run() -> None:
        settings = settings_of(MODES[0])
        async with Sandbox(settings) as sandbox, await sandbox.session(FILES, LIMITS) as session:
            await work(session)

    asyncio.run(run())


async def use(session: Session, name: str, permissions: Permissions | None = None, **arguments: Any) -> Any:
    tools = WorkspaceTools(session, permissions or Permissions(), LIMITS)
    return await tools.make(name).call(arguments)


def test_commands_files_and_searches() -> None:
    async def work(session: Session) -> None:
        assert (
            await use(session, "bash", command="cat notes.txt | head -n 1; echo two >&2")
            == "one\n[stderr]\ntwo"
        )
        assert await use(session, "bash", command="exit 3") == "[exit code 3]"
        assert await use(session, "bash", command="true") == "[no output]"
        assert await use(session, "python", code="print(sum(range(10)))") == "45"
        assert "ZeroDivisionError" in await use(session, "python", code="1/0")
        assert (
            await use(session, "write_file", path="new/b.txt", content="hé") == "wrote 3 bytes to new/b.txt"
        )
        assert await use(session, "bash", command="cat new/b.txt") == "hé"
        assert await use(session, "read_file", path="/work/notes.txt") == "one\ntwo\nthree\n"
        assert (
            await use(session, "read_file", path="notes.txt", first_line=2, lines=1)
            == "two\n[lines 2 to 2 of 4]"
        )
        found = await use(session, "search_files", pattern="on[e]")
        assert sorted(found.split("\n")) == ["./notes.txt:1:one", "./src/a.py:2:print('one')"]
        assert (
            await use(session, "search_files", pattern="zzz", path="src") == "[no line matches 'zzz' in src]"
        )
        assert await use(session, "submit", answer="done") == Submission("done")

    with_session(work)


def test_what_the_policy_asks_wrongly_is_its_own_error() -> None:
    async def work(session: Session) -> None:
        await use(session, "bash", command="ln -s /etc/passwd link; mkfifo pipe")
        for name, arguments, said in (
            ("read_file", {"path": "nothing"}, "No such file"),
            ("read_file", {"path": "../x"}, "leaves the work folder"),
            ("read_file", {"path": "link"}, "no link is followed"),
            ("read_file", {"path": "pipe"}, "not a plain file"),
            ("read_file", {"path": "."}, "name a file"),
            ("read_file", {"path": "notes.txt", "first_line": 9}, "there is no line 9"),
            ("write_file", {"path": "notes.txt/x", "content": ""}, "Not a directory"),
            ("bash", {"command": "a\0b"}, "NUL"),
            ("bash", {"command": "x" * 200_000}, "128 KiB"),
        ):
            with pytest.raises(ToolRefusal, match=said):
                await use(session, name, **arguments)
        assert "Unmatched" in await use(session, "search_files", pattern="(")

    with_session(work)


def test_a_command_that_hangs_and_one_that_floods_have_their_end() -> None:
    async def work(session: Session) -> None:
        tools = WorkspaceTools(
            session, Permissions(), Limits(wall_s=0.5, output_kb=16), OutputBudget(50, 100)
        )
        assert await tools.make("bash").call({"command": "sleep 60"}) == "[ended: over 0.5 s of wall time]"
        flood = await tools.make("bash").call({"command": "yes"})
        assert isinstance(flood, str)
        assert flood.startswith("y\ny\n")
        assert flood.endswith("[ended: it wrote far over 16 KiB]")
        assert "characters cut here" in flood
        assert len(flood) < 300

    with_session(work)


def test_named_commands_run_without_a_shell() -> None:
    async def work(session: Session) -> None:
        only = Permissions(commands=("cat", "echo"))
        assert await use(session, "bash", only, command="echo 'a b' ; ls") == "a b ; ls"
        assert await use(session, "bash", only, command="echo $(ls) | cat") == "$(ls) | cat"
        for command, said in (
            ("ls", "'ls' is not allowed here; allowed: cat, echo"),
            ("echo 'a", "close every quote"),
            (" ", "empty"),
        ):
            with pytest.raises(ToolRefusal, match=said):
                await use(session, "bash", only, command=command)

    with_session(work)


def test_file_roots() -> None:
    async def work(session: Session) -> None:
        only = Permissions(read=("src",), write=("src/out",))
        assert "import os" in await use(session, "read_file", only, path="src/a.py")
        assert (
            await use(session, "write_file", only, path="src/out/x", content="1")
            == "wrote 1 bytes to src/out/x"
        )
        for name, arguments in (
            ("read_file", {"path": "notes.txt"}),
            ("write_file", {"path": "src/a.py", "content": ""}),
            ("search_files", {"pattern": "one"}),
        ):
            with pytest.raises(ToolRefusal, match="allowed: src"):
                await use(session, name, only, **arguments)

    with_session(work)


def test_a_lost_sandbox_is_a_fault_and_no_answer() -> None:
    async def work() -> None:
        settings = settings_of(MODES[0])
        async with Sandbox(settings) as sandbox:
            session = await sandbox.session(FILES, LIMITS)
            running = asyncio.create_task(use(session, "bash", command="sleep 60"))
            await asyncio.sleep(0.3)
            await session.end()
            with pytest.raises(SandboxFault, match="ended by us"):
                await running

    asyncio.run(work())
