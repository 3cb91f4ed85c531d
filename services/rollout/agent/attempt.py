"""Attempts by agent programs: each runs in its own sandbox session and reaches the policy through the door alone.

Invariant: as `Runner`: it ends, with one stop reason, whatever the program does; its session, its key and its requests
are gone when it is over. A program that ended without one answer of the policy was no attempt at all: that is told as a
fault of ours, with the program's own last words, and is in no reward.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from services.rollout.agent.desk import Desk
from services.rollout.agent.endpoint import Endpoint
from services.rollout.continuing import Course
from services.rollout.engines.base import Engine
from services.rollout.engines.cut import Cut
from services.rollout.formats.choose import Adapter
from services.rollout.turns.budgets import Budgets
from services.rollout.turns.episode import End
from services.rollout.turns.leasing import Sessions, leased
from services.rollout.turns.replay import Replay, check_whole
from services.rollout.turns.sampling import Sampler, Speaks
from services.rollout.turns.tokens import Tokens
from shared.agent_settings import FOLDER
from shared.contracts import Slot, StopReason, Task, ToolCall
from shared.domains.agent import AgentProgram
from shared.domains.workspace import Keeping, left_behind
from shared.errors import TemperError
from shared.sandbox.command import Command
from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import Limits
from shared.sandbox.network.proxy import ADDRESS
from shared.sandbox.outcome import Outcome, Result
from shared.sandbox.sessions.session import Session
from shared.telemetry.text import one_line

MODEL = "policy"
"""Its name at the endpoint. Requests may name any."""
MOST_SAID = 4000
"""Characters kept of the end of each stream of the program."""
_OPEN_FILES = 256
_NOT_STARTED = {
    126: ": a program that cannot be executed in the sandbox; mend its command",
    127: ": a program that is not in the sandbox; mend its command",
}
"""Exit codes of a shell, and of our sandbox, for a program that never ran."""


class AgentFault(TemperError):
    """An agent program that never got an answer of the policy: nothing was attempted."""


@dataclass(frozen=True, slots=True)
class AgentRunner:
    """Shared by all attempts of a process at one domain; as `Runner`."""

    engine: Engine
    tokens: Tokens
    sessions: Sessions
    endpoint: Endpoint
    program: AgentProgram
    keeping: Keeping = field(default_factory=Keeping)
    format: str = ""
    turns_of: Callable[[str], AbstractAsyncContextManager[None]] = lambda name: contextlib.nullcontext()
    told: Callable[[ToolCall], None] = lambda call: None

    async def attempt(
        self, task: Task, slot: Slot, seed: int, cut: Cut | None = None, course: Course | None = None
    ) -> End:
        """What a program did is in its sandbox: handed back, it starts again. Raises `ContractError` for a task that cannot be attempted so, `AgentFault`, `GenerationFault` and
        `SandboxFault` for what went wrong on our side."""
        if course is not None:
            course.lost = "what its program did is in its memory"
        program, cut = self.program, cut or Cut()
        budgets = Budgets.of(task, self.engine.longest)
        name = f"{slot.group_id}/{slot.sample_index}"
        desk = self._desk(task, name, seed, budgets, program)
        files = {**task.files, **program.files}
        async with leased(self.sessions, task, files, budgets.wall_s) as lent:
            async with self.turns_of(name):
                ran, seconds = await self._run(lent.session, program, task, desk, budgets, cut=cut)
            given = {path: text for path, text in files.items() if not path.startswith(f"{FOLDER}/")}
            left = await left_behind(lent.session, given, self.keeping, (FOLDER,))
        if not desk.answered and not cut.asked:
            raise _never_asked(task, program, desk, ran)
        end = _end(program, desk, ran, seconds, {**left, **_told(program, desk, ran)})
        check_whole(task, end.stop_reason, end.turns)
        return end

    def _desk(self, task: Task, name: str, seed: int, budgets: Budgets, program: AgentProgram) -> Desk:
        sampler = Sampler(
            engine=self.engine,
            request_id=name,
            stop_ids=self.tokens.stop_ids,
            temperature=task.sampling.temperature,
            top_p=task.sampling.top_p,
            seed=seed,
            exact=task.purpose == "train",
        )

        def speaks(adapter: Adapter) -> Speaks:
            if not task.demonstration:
                return sampler
            return Replay.of(task.demonstration, adapter.format, self.tokens, task.group_id)

        return Desk(
            self.tokens,
            budgets,
            task.sampling,
            speaks,
            strict=program.sampling == "strict",
            form=self.format,
            told=self.told,
        )

    async def _run(
        self, session: Session, program: AgentProgram, task: Task, desk: Desk, budgets: Budgets, *, cut: Cut
    ) -> tuple[Result | None, float]:
        """What became of the program, None where we ended it; and the seconds that it took."""
        key = self.endpoint.opened(desk)
        began = time.monotonic()
        command = _command(program, task, key, self.endpoint.address)
        limits = Limits(
            wall_s=budgets.wall_s,
            cpu_s=budgets.wall_s,
            memory_mb=program.memory_mb,
            processes=program.processes,
            open_files=_OPEN_FILES,
        )
        run = asyncio.ensure_future(session.exec(command, limits))
        over = asyncio.ensure_future(desk.over.wait())
        asked = asyncio.ensure_future(cut.wait())
        try:
            await asyncio.wait(
                {run, over, asked}, timeout=budgets.wall_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not run.done() and not desk.over.is_set():
                desk.ended_by = "cancelled" if cut.asked else "deadline"
            result = run.result() if run.done() else None
        finally:
            for one in (run, over, asked):
                one.cancel()
            await asyncio.gather(run, over, asked, return_exceptions=True)
            await self.endpoint.closed(key)
        if desk.fault is not None:
            raise desk.fault
        if result is not None:
            result.raise_for_infrastructure()
            if result.outcome is Outcome.KILLED:
                raise SandboxFault(f"an agent was ended by us: {result.detail or 'its session is over'}")
            if result.outcome is Outcome.WALL_LIMIT:
                desk.ended_by = "deadline"
        return result, time.monotonic() - began


def _command(program: AgentProgram, task: Task, key: str, home: str) -> Command:
    prompt = next((m.content for m in reversed(task.messages) if m.role == "user"), "")
    base = f"http://{ADDRESS}/v1"
    return Command(
        program.argv(prompt.replace("\0", "")),
        environment={
            "OPENAI_BASE_URL": base,
            "OPENAI_API_BASE": base,
            "OPENAI_API_KEY": key,
            "OPENAI_MODEL": MODEL,
            "PYTHONDONTWRITEBYTECODE": "1",
            **program.environment,
        },
        stdin=prompt.encode("utf-8", "replace"),
        home=home,
    )


def _end(
    program: AgentProgram, desk: Desk, ran: Result | None, seconds: float, artifacts: Mapping[str, str]
) -> End:
    first, last = desk.versions()
    printed = ran.stdout.decode("utf-8", "replace").strip() if ran is not None else ""
    return End(
        sequences=desk.sequences(),
        stop_reason=desk.stop_reason,
        final_answer=printed if program.answer == "stdout" else desk.answer,
        tool_calls=tuple(desk.records),
        malformed_calls=desk.malformed,
        turns=desk.turns,
        first_version=first,
        last_version=last,
        queued_s=desk.queued_s,
        prefill_s=desk.prefill_s,
        decode_s=desk.decode_s,
        tools_s=max(0.0, seconds - desk.queued_s - desk.prefill_s - desk.decode_s),
        artifacts=artifacts,
    )


def _told(program: AgentProgram, desk: Desk, ran: Result | None) -> dict[str, str]:
    """How the program ended, for whoever looks at the trajectory."""
    refused = f", {desk.refused} refused, the last: {desk.refusal}" if desk.refused else ""
    found = {"agent": f"{_how(ran, desk.ended_by)}; {desk.answered} requests answered{refused}"}
    for name, stream in (("stdout", ran.stdout), ("stderr", ran.stderr)) if ran is not None else ():
        if stream:
            found[f"agent/{name}"] = stream.decode("utf-8", "replace")[-MOST_SAID:]
    return found


def _how(ran: Result | None, ended_by: StopReason | None) -> str:
    if ran is None:
        return f"ended by us: {ended_by or 'it was over'}"
    if ran.outcome is Outcome.EXITED:
        return f"exit code {ran.exit_code}"
    return f"ended by {ran.outcome}"


def _never_asked(task: Task, program: AgentProgram, desk: Desk, ran: Result | None) -> AgentFault:
    stream = b"" if ran is None else ran.stderr or ran.stdout
    said = one_line(stream.decode("utf-8", "replace")[-300:].strip())
    refused = f"; {desk.refused} requests were refused, the last: {desk.refusal}" if desk.refused else ""
    code = ran.exit_code if ran is not None and ran.outcome is Outcome.EXITED else None
    mend = _NOT_STARTED.get(code, "") if code is not None else ""
    return AgentFault(
        f"task {task.group_id}: the agent {' '.join(program.command)[:80]!r} got no answer of the policy "
        f"({_how(ran, desk.ended_by)}{mend}){refused}{f'; it said: {said}' if said else ''}"
    )
