"""Agent programs in real jails: recorded token by token, and ended whatever they do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.rollout.agent.attempt import AgentFault, AgentRunner
from services.rollout.agent.desk import MOST_REFUSED
from services.rollout.agent.endpoint import Endpoint
from services.rollout.chat import ChatCodec
from services.rollout.engines.base import GenerationFault
from services.rollout.engines.decoder import Decoder
from services.rollout.engines.transformers import TransformersEngine
from services.rollout.formats.calls import Call
from services.rollout.formats.choose import choose
from services.rollout.turns.episode import End
from services.rollout.turns.places import Places
from services.rollout.turns.tokens import Tokens
from shared.contracts import Limits, Sampling
from shared.domains.agent import AgentProgram
from shared.errors import ConfigError, ContractError
from shared.sandbox.faults import SandboxFault
from shared.settings import DomainSettings, parse_settings
from temper.attempt import episode
from temper.attempt.serving import settings_for
from temper.policies import FolderPolicy
from tests.rollout.agent import programs
from tests.rollout.turns import templates
from tests.rollout.turns.scripted import ScriptedEngine, check_exact, says, tokens_of
from tests.rollout.turns.test_runner import RUN, slot_of, task_of
from tests.rollout.turns.test_turns_on_a_real_engine import full_logprobs
from tests.sandbox.machines import MODES, settings_of


def program(source: str, *arguments: str, **more: Any) -> AgentProgram:
    return AgentProgram(("python3", ".agent/main.py", *arguments), {".agent/main.py": source}, **more)


def shell(tokens: Tokens, command: str) -> str:
    schema = {
        "type": "function",
        "function": {
            "name": "shell",
            "description": "Runs a command.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    }
    return choose(tokens.template, tokens.render, [schema]).format.render(
        [Call("shell", {"command": command})]
    )


Work = Callable[[Callable[..., AgentRunner], Places, Endpoint], Awaitable[None]]


def with_runner(engine: Any, tokens: Tokens, work: Work, **sandbox: Any) -> None:
    async def run() -> None:
        places, endpoint = Places(settings_of(MODES[0], **sandbox), 4, RUN), Endpoint()
        await endpoint.start()
        try:
            await work(lambda made: AgentRunner(engine, tokens, places, endpoint, made), places, endpoint)
            assert places.lent == 0
            assert not endpoint._desks
        finally:
            await endpoint.close()
            await places.close()

    asyncio.run(run())


def attempt_of(tiny_tokenizer: Any, source: str, says_: list[str], **changes: Any) -> End:
    tokens = tokens_of(tiny_tokenizer, templates.QWEN_LIKE)
    engine = ScriptedEngine(says(tokens, says_))
    ends: list[End] = []

    async def work(runner: Any, places: Places, endpoint: Endpoint) -> None:
        more = changes.pop("program", {})
        task = task_of(tools=(), **changes)
        ends.append(await runner(program(source, **more)).attempt(task, slot_of(), 1))

    with_runner(engine, tokens, work)
    check_exact(ends[0], engine)
    return ends[0]


@pytest.mark.parametrize("name", ["tiny", "qwen_like", "strict"])
def test_an_unmodified_program_works_in_its_sandbox(tiny_tokenizer: Any, name: str) -> None:
    tokens, task = tokens_of(tiny_tokenizer, templates.ALL[name]), task_of(tools=())
    if name == "strict":
        source = programs.SHELL.replace('{"role": "system", "content": "You work in a shell."}, ', "")
    else:
        source = programs.SHELL
    turns = [
        shell(tokens, "sed -i s/broken/mended/ a.txt && cat a.txt"),
        shell(tokens, "env"),
        "It is mended.",
    ]
    engine = ScriptedEngine(says(tokens, turns))

    async def work(runner: Any, places: Places, endpoint: Endpoint) -> None:
        end = await runner(program(source, "{prompt}!")).attempt(task, slot_of(), 1)
        assert (end.stop_reason, end.final_answer, end.turns) == ("stop", "It is mended.", 3)
        assert [call.name for call in end.tool_calls] == ["shell", "shell"]
        assert end.tool_calls[0].result == "mended\n"
        # The way out is the door; its key is no secret of anything but this attempt.
        assert "OPENAI_BASE_URL=http://127.0.0.1:3128/v1" in end.tool_calls[1].result
        assert str(endpoint.port) not in end.tool_calls[1].result
        assert end.artifacts["workspace/a.txt"] == "mended\n"
        assert end.artifacts["agent"] == "exit code 0; 3 requests answered"
        assert end.artifacts["agent/stdout"] == "It is mended.\n"
        assert set(end.artifacts) == {"workspace/a.txt", "agent", "agent/stdout"}
        assert len(end.sequences) == 1
        assert "mend it!" in tokens.raw(engine.asked[0].prompt)
        check_exact(end, engine)
        assert end.tools_s > 0

    with_runner(engine, tokens, work)


def test_a_stream_through_the_door_and_the_programs_own_answer(tiny_tokenizer: Any) -> None:
    end = attempt_of(tiny_tokenizer, programs.STREAMING, ["forty two"], program={"answer": "stdout"})
    assert (end.stop_reason, end.final_answer) == ("stop", "forty two")


@pytest.mark.slow
def test_the_openai_client_works_inside_the_jail(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    engine = ScriptedEngine(says(tokens, ["forty two"]))

    async def work(runner: Any, places: Places, endpoint: Endpoint) -> None:
        made = program(programs.CLIENT, answer="stdout")
        limits = Limits(turns=4, context_tokens=1 << 20, wall_seconds=120.0)
        end = await runner(made).attempt(task_of(tools=(), limits=limits), slot_of(), 1)
        assert end.final_answer == "forty two\n['policy']"
        assert {key: text for key, text in end.artifacts.items() if key.startswith("workspace")} == {}
        check_exact(end, engine)

    with_runner(engine, tokens, work, python_packages=("openai",))


def test_a_program_that_breaks_after_it_asked_is_judged_by_what_it_left(tiny_tokenizer: Any) -> None:
    end = attempt_of(tiny_tokenizer, programs.CRASHING, ["yes"])
    assert (end.stop_reason, end.final_answer) == ("stop", "yes")
    assert end.artifacts["workspace/made.txt"] == "half"
    assert end.artifacts["agent"] == "exit code 1; 1 requests answered"
    assert "oops" in end.artifacts["agent/stderr"]


def test_a_program_that_hangs_meets_its_deadline(tiny_tokenizer: Any) -> None:
    limits = Limits(turns=8, context_tokens=1 << 20, wall_seconds=3.0)
    end = attempt_of(tiny_tokenizer, programs.HANGING, ["yes"], limits=limits)
    assert (end.stop_reason, end.turns) == ("deadline", 1)


def test_a_program_that_asks_for_ever_meets_its_turns(tiny_tokenizer: Any) -> None:
    limits = Limits(turns=5, context_tokens=1 << 20, wall_seconds=60.0)
    end = attempt_of(tiny_tokenizer, programs.ENDLESS, ["again"], limits=limits)
    assert (end.stop_reason, end.turns) == ("turns", 5)
    assert "1 refused, the last: all turns of this attempt are used" in end.artifacts["agent"]
    assert "HTTP Error 403" in end.artifacts["agent/stderr"]


def test_a_program_that_floods_with_garbage_is_ended(tiny_tokenizer: Any) -> None:
    end = attempt_of(tiny_tokenizer, programs.FLOODING, ["yes"])
    assert (end.stop_reason, end.turns, end.final_answer) == ("calls", 1, "yes")
    told = re.search(r"; 1 requests answered, (\d+) refused", end.artifacts["agent"])
    # It may get in some more before it is ended: how many depends on the machine.
    assert told and int(told[1]) > MOST_REFUSED
    assert "the last: messages is 'garbage': it must be a list" in end.artifacts["agent"]


def test_what_a_program_leaves_running_asks_nobody(tiny_tokenizer: Any) -> None:
    end = attempt_of(tiny_tokenizer, programs.LATE, ["yes"])
    assert end.artifacts["agent"] == "exit code 0; 1 requests answered"


@pytest.mark.parametrize(
    ("source", "wall", "why"),
    [
        (
            programs.SILENT,
            60.0,
            r"got no answer of the policy \(exit code 3\); it said: I need a configuration",
        ),
        (
            programs.CONTRADICTING,
            60.0,
            r"1 requests were refused, the last: temperature is 0.3 and this task samples",
        ),
        (programs.NEVER, 1.5, r"got no answer of the policy \(ended by us: deadline\)"),
        ("import", 60.0, r"exit code 1\); it said: .*SyntaxError"),
    ],
)
def test_a_program_that_never_got_an_answer_is_a_fault_of_ours(
    tiny_tokenizer: Any, source: str, wall: float, why: str
) -> None:
    limits = Limits(turns=8, context_tokens=1 << 20, wall_seconds=wall)
    with pytest.raises(AgentFault, match=why):
        attempt_of(tiny_tokenizer, source, ["yes"], limits=limits)


def test_a_program_that_cannot_be_started_is_named_with_the_mend(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)

    async def work(runner: Any, places: Places, endpoint: Endpoint) -> None:
        for command, why in (
            (
                ("pythn3", "x"),
                r"'pythn3 x' .*exit code 127: a program that is not in the sandbox; mend its command",
            ),
            (("/etc/passwd",), r"exit code 126: a program that cannot be executed in the sandbox; mend"),
        ):
            with pytest.raises(AgentFault, match=why):
                await runner(AgentProgram(command)).attempt(task_of(tools=()), slot_of(), 1)

    with_runner(ScriptedEngine(says(tokens, ["x"])), tokens, work)


def test_a_broken_engine_ends_the_attempt_as_its_own_fault(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)

    async def work(runner: Any, places: Places, endpoint: Endpoint) -> None:
        with pytest.raises(GenerationFault):
            await runner(program(programs.ENDLESS)).attempt(task_of(tools=()), slot_of(), 1)

    with_runner(ScriptedEngine(lambda number, request: np.zeros(0, dtype=np.int32)), tokens, work)


def test_a_cancelled_attempt_leaves_nothing(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    engine = ScriptedEngine(says(tokens, ["x"]))

    async def work(runner: Any, places: Places, endpoint: Endpoint) -> None:
        going = asyncio.create_task(
            runner(program(programs.HANGING)).attempt(task_of(tools=()), slot_of(), 1)
        )
        while not engine.asked:
            await asyncio.sleep(0.01)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going

    with_runner(engine, tokens, work)


def test_a_session_that_is_taken_away_is_a_fault_and_no_end_of_the_program(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    engine = ScriptedEngine(says(tokens, ["x"]))

    async def work(runner: Any, places: Places, endpoint: Endpoint) -> None:
        going = asyncio.create_task(
            runner(program(programs.HANGING)).attempt(task_of(tools=()), slot_of(), 1)
        )
        while not engine.asked:
            await asyncio.sleep(0.01)
        assert places._pool is not None
        for session in list(places._pool._lent.values()):
            await session.end()
        with pytest.raises(SandboxFault, match="ended by us"):
            await going

    with_runner(engine, tokens, work)


def test_one_program_cannot_use_the_key_of_another(tiny_tokenizer: Any) -> None:
    """It reaches the same server through its own door, and the server knows it by its key alone."""
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    engine = ScriptedEngine(says(tokens, ["x"]))

    async def work(runner: Any, places: Places, endpoint: Endpoint) -> None:
        stolen = replace(program(programs.ENDLESS), environment={"OPENAI_API_KEY": "sk-of-another"})
        with pytest.raises(AgentFault, match="HTTP Error 401"):
            await runner(stolen).attempt(task_of(tools=()), slot_of(), 1)

    with_runner(engine, tokens, work)


def test_a_demonstration_is_said_through_the_program(tiny_tokenizer: Any) -> None:
    from shared.contracts import NOT_SAMPLED, ChatMessage

    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    shown = (
        ChatMessage(
            role="assistant",
            content='<tool_call>\n{"name": "shell", "arguments": {"command": "echo 7"}}\n</tool_call>',
        ),
        ChatMessage(role="assistant", content="It is 7."),
    )
    engine = ScriptedEngine(says(tokens, ["never"]))

    async def work(runner: Any, places: Places, endpoint: Endpoint) -> None:
        task = task_of(tools=(), stage="sft", demonstration=shown, sampling=Sampling(max_tokens=200))
        end = await runner(program(programs.SHELL, "{prompt}")).attempt(task, slot_of(), 1)
        assert (end.final_answer, end.turns) == ("It is 7.", 2)
        assert end.tool_calls[0].result == "7\n"
        (sequence,) = end.sequences
        assert {span.version for span in sequence.version_spans} == {NOT_SAMPLED}
        assert not sequence.logprobs.any()
        brief = task.model_copy(update={"demonstration": shown[:1]})
        with pytest.raises(ContractError, match="does not end the attempt"):
            await runner(program(programs.SHELL, "{prompt}")).attempt(brief, slot_of(), 1)

    with_runner(engine, tokens, work)
    assert not engine.asked


def test_log_probabilities_equal_a_full_pass(tiny_model: Any, tiny_tokenizer: Any, tiny_folder: Path) -> None:
    """A real model behind a real program in a real jail."""
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    engine = TransformersEngine(Decoder(tiny_model, 4), max_batch=4, max_batch_tokens=2048)

    async def work(runner: Any, places: Places, endpoint: Endpoint) -> None:
        await engine.load_policy(tiny_folder / "model.safetensors", 5, None)
        limits = Limits(turns=5, context_tokens=450, wall_seconds=60.0)
        task = task_of(tools=(), sampling=Sampling(max_tokens=24), limits=limits)
        end = await runner(program(programs.ENDLESS)).attempt(task, slot_of(), 1)
        assert end.turns == 5
        assert (end.first_version, end.last_version) == (5, 5)
        for sequence in end.sequences:
            want = full_logprobs(tiny_folder, sequence.token_ids) * sequence.loss_mask
            assert np.abs(sequence.logprobs - want).max() < 1e-4

    try:
        with_runner(engine, tokens, work)
    finally:
        engine.close()


def test_a_domain_gets_its_agent_by_the_settings_of_a_run(tiny_folder: Path, tmp_path: Path) -> None:
    """From the TOML's folder to the verdict: settings, scheduler's task, rollout's choice, jail, verifier."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/main.py").write_text("import answer\n")
    (tmp_path / "agent/answer.py").write_text(
        programs.HEAD + "print(chat([{'role': 'user', 'content': 'x'}])['content'])"
    )
    settings = settings_for(FolderPolicy(tiny_folder), {})
    declared = DomainSettings.model_validate(
        {
            "name": "arithmetic",
            "difficulty": {"digits": 1, "operations": ["+"]},
            "episode": {"agent": {"command": ["python3", ".agent/main.py"], "folder": str(tmp_path / "agent"), "answer": "stdout"}},
        }
    )  # fmt: skip
    settings = settings.model_copy(update={"domains": (declared,)})
    task = episode.task_of(settings, episode.Wanted("arithmetic", 5))
    assert task.limits.turns == 32
    right = eval(task.messages[0].content.split("is ")[1].split("?")[0])
    codec = ChatCodec.open(str(tiny_folder))
    tokens = Tokens(codec.tokenizer, codec.stop_ids)
    engine = ScriptedEngine(says(tokens, [f" {right} "]))

    async def run() -> tuple[Any, Any]:
        made = await episode.attempt(settings, task, engine, codec)
        return made, await episode.verify(settings, "arithmetic", made)

    (trajectory,), (reward,) = asyncio.run(run())
    assert (reward.verdict, trajectory.final_answer) == ("passed", str(right))
    assert trajectory.artifacts["agent"] == "exit code 0; 1 requests answered"


def test_a_domain_may_bring_an_agent_of_its_own(tiny_folder: Path) -> None:
    place = "tests.attempt.counting:CountingByAgent"
    settings = settings_for(FolderPolicy(tiny_folder), {})
    declared = DomainSettings(name=place, max_tokens=20)
    settings = settings.model_copy(update={"domains": (declared,)})
    task = episode.task_of(settings, episode.Wanted(place, 3))
    assert task.limits.turns == 32
    codec = ChatCodec.open(str(tiny_folder))
    tokens = Tokens(codec.tokenizer, codec.stop_ids)
    engine = ScriptedEngine(says(tokens, ["many"]))

    async def run() -> tuple[Any, Any]:
        made = await episode.attempt(settings, task, engine, codec)
        return made, await episode.verify(settings, place, made)

    (trajectory,), (reward,) = asyncio.run(run())
    assert (reward.verdict, trajectory.turns) == ("passed", 1)
    assert set(trajectory.artifacts) == {"agent", "agent/stdout"}


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        ({"folder": "somewhere"}, "an agent without a command"),
        ({"command": ["x"], "foldr": "."}, "did you mean 'folder'"),
        (
            {"command": ["x", "--task={promt}"]},
            r"agent.command.1 has the placeholder '{promt}', .* did you mean '{prompt}'",
        ),
        ({"command": ["x", "{task}"]}, "has the placeholder '{task}', which is not known.* known: {prompt};"),
        ({"command": ["x"], "environment": {"TASK": "{prompt}"}}, "agent.environment.TASK has '{prompt}'"),
    ],
)
def test_an_agent_that_cannot_be_is_refused(agent: dict[str, Any], why: str) -> None:
    document = {
        "run": {"name": "r"},
        "model": {"path": "m"},
        "domains": [{"name": "arithmetic", "episode": {"agent": agent}}],
        "stages": [{"kind": "rl", "steps": 1}],
    }
    with pytest.raises(ConfigError, match=why):
        parse_settings(document)


def test_braces_that_are_no_placeholders_are_the_programs_own() -> None:
    from shared.agent_settings import AgentSettings

    command = ("sh", "-c", "awk '{ print }' ${HOME}/a; find . -exec cat {} +", '{"a": 1}', "{prompt}")
    made = AgentSettings(command=command, environment={"LOG": "{time} {print}"}).program()
    assert made is not None
    assert made.argv("7 + 5?") == (*command[:-1], "7 + 5?")
    with pytest.raises(ConfigError, match=r"did you mean '{prompt}'"):
        AgentProgram(("x", "{promt}"))


def test_a_folder_that_is_no_program_is_refused(tmp_path: Path) -> None:
    from shared.agent_settings import AgentSettings

    with pytest.raises(ConfigError, match=r"agent.folder is '.*none': there is no such folder"):
        AgentSettings(command=("x",), folder=str(tmp_path / "none")).program()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as text"):
        AgentSettings(command=("x",), folder=str(tmp_path)).program()
    (tmp_path / "binary").unlink()
    for number in range(300):
        (tmp_path / str(number)).write_text("x")
    with pytest.raises(ConfigError, match="holds over 256 files"):
        AgentSettings(command=("x",), folder=str(tmp_path)).program()
    with pytest.raises(ConfigError, match="leaves the work folder"):
        AgentProgram(("x",), {"../y": ""})
    with pytest.raises(ConfigError, match="command is empty"):
        AgentProgram(())
