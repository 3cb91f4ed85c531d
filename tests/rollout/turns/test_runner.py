"""Attempts with real sandbox sessions: lent for as long as they run, and always given back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from services.rollout.engines.base import GenerateRequest, GenerationFault, Ids
from services.rollout.formats.calls import Call
from services.rollout.formats.choose import choose
from services.rollout.tools.permissions import Permissions
from services.rollout.tools.tool import ToolFault
from services.rollout.turns.episode import End
from services.rollout.turns.places import Places
from services.rollout.turns.runner import Runner
from services.rollout.turns.tokens import Tokens
from shared.contracts import NOT_SAMPLED, ChatMessage, DomainRef, Limits, Sampling, Slot, Task
from shared.domains.tools import Bench
from shared.domains.workspace import Keeping, left_behind, tree_of
from shared.errors import ConfigError, ContractError
from shared.sandbox.command import Command
from shared.sandbox.faults import SandboxFault, SandboxUnavailable
from shared.sandbox.limits import Limits as RunLimits
from shared.sandbox.sandbox import Sandbox
from tests.rollout.turns import templates
from tests.rollout.turns.scripted import ScriptedEngine, check_exact, says, tokens_of
from tests.sandbox.machines import MODES, settings_of

TOOLS = ("bash", "python", "write_file", "read_file", "submit")
RUN = RunLimits(wall_s=20.0)


def task_of(**changes: Any) -> Task:
    values: dict[str, Any] = {
        "run_id": "r",
        "group_id": "g",
        "stage": "rl",
        "stage_index": 0,
        "domain": DomainRef(name="made", version=1, seed=3),
        "workload": "agentic",
        "priority": "normal",
        "purpose": "train",
        "messages": (ChatMessage(role="user", content="mend it"),),
        "files": {"a.txt": "broken\n"},
        "tools": TOOLS,
        "sampling": Sampling(max_tokens=500, group_size=64, samples=64),
        "limits": Limits(turns=8, context_tokens=1 << 20, wall_seconds=60.0),
    }
    return Task(**(values | changes))


def written(tokens: Tokens, task: Task, *calls: Call) -> str:
    """As the tools of the task are called: `bash` and `submit` in their own blocks, where the form has such."""
    schemas = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": name,
                "parameters": {"properties": {argument: {"type": "string"}}, "required": [argument]},
            },
        }
        for name, argument in (("bash", "command"), ("submit", "answer"))
    ]
    return choose(tokens.template, tokens.render, schemas).format.render(calls)


def mending(tokens: Tokens, task: Task) -> Callable[[int, GenerateRequest], Ids]:
    """Per episode: mends the file, looks, submits what it sees."""
    turns = [
        written(tokens, task, Call("bash", {"command": "sed -i s/broken/mended/ a.txt"})),
        written(tokens, task, Call("bash", {"command": "cat a.txt"})),
        written(tokens, task, Call("submit", {"answer": "mended"})),
    ]
    script = says(tokens, turns)
    return lambda _, request: script(int(request.request_id.rpartition("/")[2]), request)


Work = Callable[[Places], Awaitable[None]]


def with_places(work: Work, most: int = 4) -> None:
    async def run() -> None:
        places = Places(settings_of(MODES[0]), most, RUN)
        try:
            await work(places)
            assert places.lent == 0
        finally:
            await places.close()

    asyncio.run(run())


def slot_of(index: int = 0) -> Slot:
    return Slot(run_id="r", group_id="g", sample_index=index)


@pytest.mark.parametrize("name", ["tiny", "qwen_like"])
def test_an_attempt_works_in_its_own_sandbox(tiny_tokenizer: Any, name: str) -> None:
    tokens, task = tokens_of(tiny_tokenizer, templates.ALL[name]), task_of()
    engine = ScriptedEngine(mending(tokens, task))

    async def work(places: Places) -> None:
        runner = Runner(engine, tokens, places, limits=RUN)
        first = await runner.attempt(task, slot_of(), 1)
        assert (first.stop_reason, first.final_answer, first.turns) == ("stop", "mended", 3)
        assert [call.result for call in first.tool_calls] == ["[no output]", "mended", ""]
        assert first.artifacts == {"workspace/a.txt": "mended\n"}
        check_exact(first, engine)
        engine.asked.clear()
        # The next has the files of its task again, not what the first left.
        second = await runner.attempt(task, slot_of(1), 2)
        assert [call.result for call in second.tool_calls] == ["[no output]", "mended", ""]

    with_places(work)


def test_more_attempts_than_sessions(tiny_tokenizer: Any) -> None:
    tokens, task = tokens_of(tiny_tokenizer, templates.TINY), task_of()
    engine = ScriptedEngine(mending(tokens, task), pause_s=0.001)

    async def work(places: Places) -> None:
        runner = Runner(engine, tokens, places, limits=RUN)
        ends: list[End] = await asyncio.gather(*(runner.attempt(task, slot_of(n), n) for n in range(8)))
        assert [end.final_answer for end in ends] == ["mended"] * 8
        prompts = sum(len(end.sequences) for end in ends)
        assert prompts == 8

    with_places(work, most=2)


def test_a_session_comes_back_however_its_attempt_ends(tiny_tokenizer: Any) -> None:
    tokens, task = tokens_of(tiny_tokenizer, templates.TINY), task_of()
    sleep = says(tokens, [written(tokens, task, Call("bash", {"command": "sleep 100"}))])

    async def work(places: Places) -> None:
        hung = ScriptedEngine(sleep)
        # A deadline of the attempt, in the middle of a command.
        brief = task_of(limits=Limits(turns=8, context_tokens=1 << 20, wall_seconds=0.5))
        end = await Runner(hung, tokens, places, limits=RUN).attempt(brief, slot_of(), 1)
        assert (end.stop_reason, end.turns) == ("deadline", 1)
        assert places.lent == 0
        # Cancelled from outside.
        attempt = asyncio.create_task(Runner(hung, tokens, places, limits=RUN).attempt(task, slot_of(), 1))
        while len(hung.asked) < 2:
            await asyncio.sleep(0.01)
        assert places.lent == 1
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        assert places.lent == 0
        # The engine breaks.
        broken = ScriptedEngine(lambda number, request: np.zeros(0, dtype=np.int32))
        with pytest.raises(GenerationFault):
            await Runner(broken, tokens, places, limits=RUN).attempt(task, slot_of(), 1)
        assert places.lent == 0
        # Files that cannot be put there.
        with pytest.raises((ContractError, ConfigError), match="its files cannot be put into a sandbox"):
            await Runner(hung, tokens, places, limits=RUN).attempt(task_of(files={"../x": ""}), slot_of(), 1)

    with_places(work)


def test_a_session_that_was_taken_away_is_a_fault(tiny_tokenizer: Any) -> None:
    tokens, task = tokens_of(tiny_tokenizer, templates.TINY), task_of()
    taken: list[Any] = []
    script = mending(tokens, task)

    class Taking:
        """Lends as `Places` does, and remembers what."""

        def __init__(self, places: Places) -> None:
            self._places = places

        @contextlib.asynccontextmanager
        async def lease(self, files: Any, seconds: float) -> Any:
            async with self._places.lease(files, seconds) as lent:
                taken.append(lent)
                yield lent

    async def work(places: Places) -> None:
        async def ended() -> None:
            while not taken:
                await asyncio.sleep(0.01)
            lent = taken[0]
            await lent.session.end()
            lent._pool._leases.give_back(lent._lease)  # as when its time is over

        ending = asyncio.create_task(ended())
        engine = ScriptedEngine(script, pause_s=0.5)
        with pytest.raises(SandboxFault):
            await Runner(engine, tokens, Taking(places), limits=RUN).attempt(task, slot_of(), 1)
        await ending

    with_places(work)


def test_what_a_task_cannot_have_is_refused_before_a_token(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    engine = ScriptedEngine(says(tokens, ["x"]))
    bare = Runner(engine, tokens)
    with pytest.raises(ContractError, match="need a sandbox, and this process has none"):
        asyncio.run(bare.attempt(task_of(), slot_of(), 1))
    with pytest.raises(ContractError, match="names tool 'serch', which is not known"):
        asyncio.run(bare.attempt(task_of(tools=("serch",)), slot_of(), 1))

    async def work(places: Places) -> None:
        narrow = Runner(engine, tokens, places, permissions=Permissions(read=("src",)))
        with pytest.raises(ConfigError, match="sees the whole workspace"):
            await narrow.attempt(task_of(), slot_of(), 1)

    with_places(work)
    assert not engine.asked


def test_a_machine_without_a_sandbox_is_told_of(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)

    async def run() -> None:
        places = Places(settings_of(MODES[0], nsjail="/nonexistent/nsjail"), 2)
        runner = Runner(ScriptedEngine(says(tokens, ["x"])), tokens, places)
        with pytest.raises(SandboxUnavailable, match="nonexistent"):
            await runner.attempt(task_of(), slot_of(), 1)
        await places.close()
        with pytest.raises(SandboxFault, match="it is stopping"):
            await runner.attempt(task_of(), slot_of(), 1)

    asyncio.run(run())


class Ledger:
    """A domain with a simulated bank."""

    def tools(self, bench: Bench) -> list[Any]:
        balance = bench.reference.seed

        async def deposit(amount: int) -> str:
            """Puts money into the account."""
            nonlocal balance
            balance += amount
            return f"balance {balance}"

        return [deposit]


class Clumsy:
    def tools(self, bench: Bench) -> list[Any]:
        async def deposit(amount: int) -> str:
            """Breaks."""
            return {}[amount]  # type: ignore[no-any-return]

        return [deposit]


def test_a_domains_own_tools_keep_their_state_within_an_attempt(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.QWEN_LIKE)
    task = task_of(tools=("deposit",), files={})
    call = written(tokens, task, Call("deposit", {"amount": 5}))
    engine = ScriptedEngine(says(tokens, [call, call, "13"] * 2))
    runner = Runner(engine, tokens, domain_of=lambda name: Ledger() if name == "made" else None)
    for _ in range(2):
        end = asyncio.run(runner.attempt(task, slot_of(), 1))
        assert [made.result for made in end.tool_calls] == ["balance 8", "balance 13"]
    engine.asked.clear()
    with pytest.raises(ToolFault, match="tool 'deposit' broke: KeyError"):
        asyncio.run(Runner(engine, tokens, domain_of=lambda name: Clumsy()).attempt(task, slot_of(), 1))


@pytest.mark.parametrize("name", ["tiny", "qwen_like", "llama_like", "strict"])
def test_a_demonstration_is_replayed_with_its_tools(tiny_tokenizer: Any, name: str) -> None:
    """Written once by a domain, in tags; said in each model's own form, with what the tools really answer."""
    tokens = tokens_of(tiny_tokenizer, templates.ALL[name])
    shown = (
        ChatMessage(
            role="assistant",
            content='I add.\n<tool_call>\n{"name": "deposit", "arguments": {"amount": 4}}\n</tool_call>',
        ),
        ChatMessage(role="tool", content="something else"),
        ChatMessage(role="assistant", content="7"),
    )
    task = task_of(
        tools=("deposit",), files={}, stage="sft", demonstration=shown, sampling=Sampling(max_tokens=200)
    )
    engine = ScriptedEngine(says(tokens, ["never"]))
    end = asyncio.run(Runner(engine, tokens, domain_of=lambda _: Ledger()).attempt(task, slot_of(), 1))
    assert not engine.asked
    assert (end.final_answer, end.turns) == ("7", 2)
    assert [call.result for call in end.tool_calls] == ["balance 7"]
    (sequence,) = end.sequences
    imitated = tokens.raw(sequence.token_ids[sequence.loss_mask.astype(bool)])
    assert imitated.startswith("I add.")
    assert imitated.endswith("<|end|>7<|end|>")
    assert ("<tool_call>" in imitated) == (name == "qwen_like")
    assert "balance 7" in tokens.raw(sequence.token_ids)
    assert not sequence.logprobs.any()
    assert {span.version for span in sequence.version_spans} == {NOT_SAMPLED}


@pytest.mark.parametrize(
    ("said", "limits", "why"),
    [
        ('<tool_call>{"name": "deposit", "arguments": {"amount": 4}}</tool_call>', Limits(turns=9), "does not end the attempt"),
        ("7" * 300, Limits(turns=9), "has 301 tokens and there is room for 200"),
        ("<tool_call>oops</tool_call>", Limits(turns=9), "malformed"),
        ('<tool_call>{"name": "deposit", "arguments": {"amount": 4}}</tool_call>', Limits(turns=1), "reached the limit 'turns'"),
    ],
)  # fmt: skip
def test_a_demonstration_that_does_not_fit_says_why(
    tiny_tokenizer: Any, said: str, limits: Limits, why: str
) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    shown = (ChatMessage(role="assistant", content=said),)
    task = task_of(
        tools=("deposit",),
        files={},
        stage="sft",
        demonstration=shown,
        sampling=Sampling(max_tokens=200),
        limits=limits,
    )
    runner = Runner(ScriptedEngine(says(tokens, ["x"])), tokens, domain_of=lambda _: Ledger())
    with pytest.raises(ContractError, match=why):
        asyncio.run(runner.attempt(task, slot_of(), 1))


def test_what_is_left_behind_is_told_whole_or_counted() -> None:
    async def run() -> None:
        async with Sandbox(settings_of(MODES[0])) as sandbox:
            given = {
                "same.txt": "s",
                "gone.txt": "g",
                "changed.txt": "c",
                "run.sh": "r",
                "now_large.txt": "n",
            }
            files = {path: text.encode() for path, text in given.items()}
            async with await sandbox.session(files, RUN) as session:
                script = (
                    "echo new > made.txt; echo more >> changed.txt; rm gone.txt; ln -s /etc/passwd link; mkfifo pipe;"
                    "head -c 3000 /dev/zero | tr '\\0' x > large.txt; printf '\\377' > binary; mkdir .notes;"
                    "touch \"$(printf 'bad\\377name')\";"
                    "echo n > .notes/1; mkdir -p d/e empty; echo deep > d/e/f; chmod 755 run.sh; cp large.txt now_large.txt"
                )
                await session.exec(Command(("/bin/sh", "-c", script)), RUN)
                left = await left_behind(session, given, Keeping(file_bytes=2000), (".notes",))
                rest = json.loads(left.pop("workspace"))
                assert left == {
                    "workspace/made.txt": "new\n",
                    "workspace/changed.txt": "cmore\n",
                    "workspace/d/e/f": "deep\n",
                }
                assert rest == {
                    "deleted": ["gone.txt", "now_large.txt"],
                    "links": {"link": "/etc/passwd"},
                    "folders": ["empty"],
                    "modes": {"run.sh": "755"},
                    "left_out": 5,
                }
                again = await left_behind(session, given, Keeping(file_bytes=2000), (".notes",))
                assert tree_of(given, again) == [
                    {"path": "changed.txt", "text": "cmore\n", "mode": "644"},
                    {"path": "d/e/f", "text": "deep\n", "mode": "644"},
                    {"path": "empty", "kind": "folder"},
                    {"path": "link", "kind": "link", "target": "/etc/passwd"},
                    {"path": "made.txt", "text": "new\n", "mode": "644"},
                    {"path": "run.sh", "text": "r", "mode": "755"},
                    {"path": "same.txt", "text": "s", "mode": "644"},
                ]
                few = await left_behind(session, given, Keeping(files=1))
                assert len([name for name in few if name.startswith("workspace/")]) == 1
                assert json.loads(few["workspace"])["left_out"] > 7

    asyncio.run(run())


class Reader:
    """A domain whose tool reads the session's files."""

    def tools(self, bench: Bench) -> list[Any]:
        async def peek() -> str:
            """Reads the file."""
            assert bench.session is not None
            return (await bench.session.read("a.txt")).decode()

        return [peek]


def test_files_alone_give_a_domains_tools_a_session(tiny_tokenizer: Any) -> None:
    tokens, task = tokens_of(tiny_tokenizer, templates.QWEN_LIKE), task_of(tools=("peek",))
    engine = ScriptedEngine(says(tokens, [written(tokens, task, Call("peek", {})), "done"]))

    async def work(places: Places) -> None:
        end = await Runner(engine, tokens, places, domain_of=lambda _: Reader()).attempt(task, slot_of(), 1)
        assert end.tool_calls[0].result == "broken\n"
        assert end.artifacts == {}

    with_places(work)
