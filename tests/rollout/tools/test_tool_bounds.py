"""A call ends, in time and in size; whose fault it was is never mixed up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollout.formats.calls import Call, Malformed
from services.rollout.tools import tool as tool_module
from services.rollout.tools.budget import OutputBudget
from services.rollout.tools.opening import DomainTools, needs_session, open_tools
from services.rollout.tools.permissions import Permissions
from services.rollout.tools.tool import Retry, Tool, ToolFault, make_tool
from services.rollout.tools.toolset import Ran, Toolset
from services.rollout.tools.workspace import WorkspaceTools, submit
from shared.contracts import DomainRef, ToolCall
from shared.domains.tools import Bench, OffersTools, Submission, ToolRefusal
from shared.errors import ConfigError, ContractError
from shared.sandbox.faults import SandboxFault
from shared.sandbox.sessions.files import WorkspaceRefusal
from shared.sandbox.sessions.session import Session

SESSION: Any = object.__new__(Session)
"""Never used: these tests make tools and call none of a session."""


@given(st.text(max_size=300), st.integers(0, 40), st.integers(1, 40))
def test_output_keeps_its_head_and_its_tail_and_says_what_is_missing(text: str, head: int, tail: int) -> None:
    kept = OutputBudget(head, tail).keep(text)
    if len(text) <= head + tail:
        assert kept == text
        return
    before, _, rest = kept.partition("[… ")
    count, _, _ = rest.partition(" of ")
    after = rest.partition(" …]")[2]
    before, after = before.removesuffix("\n"), after.removeprefix("\n")
    assert text.startswith(before)
    assert text.endswith(after)
    assert len(before) <= head
    assert len(after) <= tail
    assert int(count) == len(text) - len(before) - len(after)


def test_a_flood_is_cut_at_line_ends() -> None:
    text = "\n".join(f"line {number}" for number in range(100_000))
    kept = OutputBudget(100, 100).keep(text).split("\n")
    assert kept[0] == "line 0"
    assert kept[-1] == "line 99999"
    assert all(line.startswith(("line ", "[… ")) for line in kept)


async def hang() -> str:
    """Never ends."""
    await asyncio.Event().wait()
    return ""


async def deaf() -> str:
    """Does not end when it is told to."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if _let_go:
                raise


_let_go: list[bool] = []


async def echo(text: str) -> str:
    """Returns its argument."""
    return text


def call(tool: Tool, **arguments: Any) -> Any:
    return asyncio.run(tool.call(arguments))


def test_a_tool_that_hangs_is_ended() -> None:
    with pytest.raises(ToolRefusal, match="hang took longer than 0.05 s and was ended"):
        call(make_tool(hang, timeout_s=0.05))
    with pytest.raises(SandboxFault, match=r"over 0\.05 s: the sandbox hangs"):
        call(make_tool(hang, timeout_s=0.05, overrun="ours"))


def test_a_tool_that_cannot_be_cancelled_is_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_module, "CANCEL_GRACE_S", 0.05)

    async def tried() -> None:
        with pytest.raises(ToolFault, match="it must let CancelledError through"):
            await make_tool(deaf, timeout_s=0.05).call({})
        _let_go.append(True)

    asyncio.run(tried())


def raising(error: Exception, times: int = 1 << 30) -> tuple[Tool, list[int]]:
    tries: list[int] = []

    async def broken() -> str:
        """Fails."""
        tries.append(1)
        if len(tries) <= times:
            raise error
        return "done"

    return make_tool(broken, retry=Retry(attempts=3, pause_s=0.001)), tries


@pytest.mark.parametrize(
    ("error", "becomes", "tries"),
    [
        (ToolRefusal("no such city"), ToolRefusal, 1),
        (WorkspaceRefusal("it is a link"), ToolRefusal, 1),
        (SandboxFault("keeper lost"), SandboxFault, 3),
        (KeyError("of the domain"), ToolFault, 1),
        (TimeoutError("of its own"), ToolFault, 1),
    ],
)
def test_only_our_faults_are_tried_again(error: Exception, becomes: type[Exception], tries: int) -> None:
    tool, seen = raising(error)
    with pytest.raises(becomes):
        call(tool)
    assert len(seen) == tries


def test_a_fault_that_passes_is_not_noticed() -> None:
    tool, seen = raising(SandboxFault("busy"), times=2)
    assert call(tool) == "done"
    assert len(seen) == 3


def test_a_result_that_is_no_text_is_the_domains_fault() -> None:
    async def wrong() -> str:
        """Returns a number."""
        return 3  # type: ignore[return-value]

    with pytest.raises(ToolFault, match="returned int"):
        call(make_tool(wrong))


def test_a_result_with_half_a_character_can_travel() -> None:
    assert call(make_tool(echo), text="a") == "a"

    async def half() -> str:
        """Returns half of a pair."""
        return "a\ud800b"

    assert call(make_tool(half)) == "a?b"

    async def refuse() -> str:
        """Refuses with half of a pair."""
        raise ToolRefusal("no \ud800")

    async def end() -> Submission:
        """Ends with half of a pair."""
        return Submission("\ud800")

    result, records = ran(Toolset((make_tool(refuse), make_tool(end))), Call("refuse", {}), Call("end", {}))
    assert result.submission == "?"
    assert [record.error for record in records] == ["no ?", ""]
    assert all(record.model_dump_json() for record in records)


def ran(toolset: Toolset, *calls: Call | Malformed, most: int = 16) -> tuple[Ran, list[ToolCall]]:
    records: list[ToolCall] = []
    return asyncio.run(toolset.run(calls, most=most, turn=3, record=records.append)), records


def test_every_call_has_one_answer_and_one_record() -> None:
    toolset = Toolset((make_tool(echo), make_tool(submit)))
    result, records = ran(
        toolset,
        Call("echo", {"text": "1"}),
        Malformed("it is not JSON"),
        Call("ecoh", {"text": "2"}),
        Call("echo", {"txt": "3"}),
    )
    assert [answer.text for answer in result.answers] == [
        "1",
        "error: it is not JSON",
        "error: there is no tool 'ecoh'; did you mean 'echo'?; there are: echo, submit",
        "error: echo: argument 'text' is missing; unknown argument 'txt'; did you mean 'text'?",
    ]
    assert [(record.name, record.result, bool(record.error), record.turn) for record in records] == [
        ("echo", "1", False, 3),
        ("ecoh", "", True, 3),
        ("echo", "", True, 3),
    ]
    assert result.submission is None


def test_a_submission_ends_the_turn() -> None:
    result, records = ran(
        Toolset((make_tool(echo), make_tool(submit))),
        Call("echo", {"text": "1"}),
        Call("submit", {"answer": "42"}),
        Call("echo", {"text": "2"}),
    )
    assert result.submission == "42"
    assert [record.name for record in records] == ["echo", "submit"]


def test_a_flood_of_calls_runs_no_more_than_its_bound() -> None:
    result, records = ran(Toolset((make_tool(echo),)), *[Call("echo", {"text": "x"})] * 64, most=5)
    assert sum(record.result == "x" for record in records) == 5
    assert len(records) == len(result.answers) == result.calls == 64
    assert (
        result.answers[5].text
        == "error: not run: at most 5 calls a turn; read these results first, then go on"
    )


def test_a_call_that_is_cut_off_is_recorded() -> None:
    records: list[ToolCall] = []

    async def cut() -> None:
        toolset = Toolset((make_tool(echo), make_tool(hang)))
        async with asyncio.timeout(0.05):
            await toolset.run(
                [Call("echo", {"text": "1"}), Call("hang", {})], most=9, turn=0, record=records.append
            )

    with pytest.raises(TimeoutError):
        asyncio.run(cut())
    assert [(record.name, record.error) for record in records] == [
        ("echo", ""),
        ("hang", "cut off: the attempt was over"),
    ]


def test_two_tools_of_one_name_and_one_that_reaches_out_are_refused() -> None:
    with pytest.raises(ConfigError, match="two tools are called 'echo'"):
        Toolset((make_tool(echo), make_tool(echo)))
    with pytest.raises(ConfigError, match="needs the permission network"):
        Toolset((make_tool(echo, network=True),))
    assert Toolset((make_tool(echo, network=True),), network=True).tools


class Counter:
    """A domain with a little state an attempt, made from what is public."""

    def tools(self, bench: Bench) -> list[Any]:
        count = len(bench.files)

        async def increment(by: int = 1) -> str:
            """Adds to the counter."""
            nonlocal count
            count += by
            return str(count)

        async def submit(value: int) -> Submission:
            """Ends the attempt with a number."""
            return Submission(str(value + count))

        return [increment, submit]


class Broken:
    def tools(self, bench: Bench) -> list[Any]:
        raise ValueError("no such seed")


BENCH = Bench(DomainRef(name="counter", version=1, seed=0), {"a.txt": "", "b.txt": ""})


def test_a_domains_tools_keep_state_and_win_over_the_sandboxs() -> None:
    assert isinstance(Counter(), OffersTools)
    toolset = open_tools(("increment", "submit"), BENCH, WorkspaceTools(None), Counter())
    result, _ = ran(
        toolset, Call("increment", {}), Call("increment", {"by": 5}), Call("submit", {"value": 100})
    )
    assert [answer.text for answer in result.answers] == ["3", "8"]
    assert result.submission == "108"
    assert not needs_session(("increment", "submit"))
    assert needs_session(("increment", "bash"))


def test_what_cannot_be_had_is_refused_before_anything_is_sampled() -> None:
    with pytest.raises(
        ContractError, match=r"names tool 'incremnt', which is not known; did you mean 'increment'"
    ):
        open_tools(("incremnt",), BENCH, WorkspaceTools(None), Counter())
    with pytest.raises(ConfigError, match="'bash' works in a sandbox, and this attempt has none"):
        open_tools(("bash",), BENCH, WorkspaceTools(None), Counter())
    with pytest.raises(ToolFault, match="'counter' failed to make its tools: ValueError: no such seed"):
        open_tools(("increment",), BENCH, WorkspaceTools(None), Broken())
    with pytest.raises(ConfigError, match="needs the permission network"):
        open_tools(
            ("increment",),
            BENCH,
            WorkspaceTools(None),
            Counter(),
            DomainTools(network=frozenset({"increment"})),
        )


def test_permissions_that_a_shell_cannot_keep_are_refused() -> None:
    narrow = Permissions(read=("src",), write=("src",))
    for name in ("bash", "python"):
        with pytest.raises(ConfigError, match="sees the whole workspace"):
            WorkspaceTools(SESSION, narrow).make(name)
    assert WorkspaceTools(SESSION, narrow).make("read_file")
    named = Permissions(read=("src",), write=("src",), commands=("ls",))
    assert WorkspaceTools(SESSION, named).make("bash")
    with pytest.raises(ConfigError, match="not among the commands"):
        WorkspaceTools(SESSION, named).make("python")


@pytest.mark.parametrize(
    ("path", "place"), [("src/a", "src/a"), ("/work/src/a", "src/a"), ("./src//a", "src/a"), ("src", "src")]
)
def test_a_path_under_a_root(path: str, place: str) -> None:
    assert Permissions(read=("src",)).readable(path) == place


@pytest.mark.parametrize(
    "path", ["a", "srcs/a", "src/../a", "/etc/passwd", "/work/../etc/passwd", "", ".", "a\0b"]
)
def test_a_path_outside_of_the_roots(path: str) -> None:
    with pytest.raises(ToolRefusal):
        Permissions(read=("src",)).readable(path)
