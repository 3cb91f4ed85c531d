"""Many attempts at once, each with a sandbox session of its own.

Invariant: a session that was lent is given back when its attempt is over, however it ends: well, by a fault, by a
deadline, or cancelled. What an attempt cannot have (a tool, a permission, a file) is refused before a token is sampled.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

from services.rollout.context.notes import FOLDER, Notes
from services.rollout.context.retrieve import Retrieve
from services.rollout.context.segments import ContextPolicy
from services.rollout.continuing import Course, OtherContextError
from services.rollout.engines.base import Engine
from services.rollout.engines.cut import Cut
from services.rollout.formats.choose import choose
from services.rollout.tools.budget import OutputBudget
from services.rollout.tools.opening import DomainTools, needs_session, open_tools
from services.rollout.tools.permissions import Permissions
from services.rollout.tools.toolset import Toolset
from services.rollout.tools.workspace import WorkspaceTools
from services.rollout.turns.budgets import Budgets
from services.rollout.turns.carrying import Carrying, Remembering
from services.rollout.turns.episode import End, Episode
from services.rollout.turns.leasing import Sessions, leased
from services.rollout.turns.making_room import RoomMaker
from services.rollout.turns.replay import Replay, check_whole
from services.rollout.turns.resuming import Resuming
from services.rollout.turns.sampling import Sampler, Speaks
from services.rollout.turns.tokens import Tokens
from shared.contracts import Slot, Task, ToolCall
from shared.domains.tools import Bench
from shared.domains.workspace import Keeping, left_behind
from shared.domains.workspace_tools import WORKSPACE_TOOLS
from shared.errors import ContractError
from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import Limits
from shared.sandbox.sessions.pool import Lent

DomainOf = Callable[[str], object | None]
"""By name; None for a domain without tools of its own."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Shared by all attempts of a process. `sessions` None: tasks whose tools need a sandbox are refused."""

    engine: Engine
    tokens: Tokens
    sessions: Sessions | None = None
    domain_of: DomainOf = lambda name: None
    permissions: Permissions = field(default_factory=Permissions)
    limits: Limits = field(default_factory=Limits)
    domain_tools: DomainTools = field(default_factory=DomainTools)
    output: OutputBudget = field(default_factory=OutputBudget)
    context: ContextPolicy | None = None
    keeping: Keeping = field(default_factory=Keeping)
    carrying: Carrying | None = None
    """None: what is in a sandbox stays there."""
    format: str = ""
    """Of tool calls; empty: chosen by the chat template."""
    turns_of: Callable[[str], AbstractAsyncContextManager[None]] = lambda name: contextlib.nullcontext()
    """Around all turns of the episode of a name: a policy that may come only between episodes waits for its end."""
    told: Callable[[ToolCall], None] = lambda call: None
    """Of every tool call of every attempt, as soon as it is over."""

    async def attempt(
        self, task: Task, slot: Slot, seed: int, cut: Cut | None = None, course: Course | None = None
    ) -> End:
        """One attempt at `task`, to the end or to the cut; `course` has what was sampled of it before. Raises `ContractError`, `ConfigError`, `TemplateFault` for a task that cannot be
        attempted here, `GenerationFault`, `SandboxFault` and `ToolFault` for what went wrong on our side."""
        if task.rejected:
            raise ContractError(f"task {task.group_id}: a pair of answers with tools or turns cannot be told")
        budgets = Budgets.of(task, self.engine.longest)
        name = f"{slot.group_id}/{slot.sample_index}"
        course = course or Course()
        async with self._lent(task, budgets.wall_s, course) as lent:
            episode = self._episode(task, name, seed, budgets, lent=lent, cut=cut, course=course)
            async with self.turns_of(name):
                end = await episode.run(task.messages)
            handed_back = end.stop_reason == "cancelled" and cut is not None and cut.reason == "hand_back"
            if lent is not None and handed_back and self.carrying is not None:
                await self.carrying.take(lent.session, course)
            elif lent is not None:
                left = await left_behind(lent.session, task.files, self.keeping, (FOLDER,))
                end = replace(end, artifacts=left)
        check_whole(task, end.stop_reason, end.turns)
        return end

    def _episode(
        self,
        task: Task,
        name: str,
        seed: int,
        budgets: Budgets,
        *,
        lent: Lent | None,
        cut: Cut | None,
        course: Course,
    ) -> Episode:
        session = lent.session if lent else None
        notes = Notes(session)
        toolset = open_tools(
            task.tools,
            Bench(task.domain, task.files, session),
            WorkspaceTools(session, self.permissions, self.limits, self.output),
            self.domain_of(task.domain.name),
            self.domain_tools,
        )
        if isinstance(self.context, Retrieve):
            toolset = Toolset((*toolset.tools, notes.tool()), network=toolset.network)
        schemas = toolset.schemas()
        adapter = choose(self.tokens.template, self.tokens.render, schemas, self.format)
        sampler: Speaks = (
            Replay.of(task.demonstration, adapter.format, self.tokens, task.group_id)
            if task.demonstration
            else Resuming(
                Sampler(
                    engine=self.engine,
                    request_id=name,
                    stop_ids=self.tokens.stop_ids,
                    temperature=task.sampling.temperature,
                    top_p=task.sampling.top_p,
                    seed=seed,
                    exact=task.purpose == "train",
                    cut=cut,
                ),
                course,
            )
        )
        policy = self.context
        if lent is not None:
            course.lost = self._kept_here(task)
        return Episode(
            tokens=self.tokens,
            adapter=adapter,
            toolset=toolset if lent is None else Remembering(toolset, course, lent.session, cut),
            budgets=budgets,
            sampler=sampler,
            room_maker=None
            if policy is None
            else lambda transcript: RoomMaker(
                policy,
                self.tokens,
                sampler,
                transcript,
                limit=budgets.context_tokens,
                reserve=min(budgets.turn_tokens, budgets.context_tokens // 4),
                schemas=schemas if adapter.tells else (),
                notes=notes,
            ),
            check_alive=lambda: _check_alive(lent, budgets.wall_s),
            told=self.told,
            cut=cut,
        )

    def _kept_here(self, task: Task) -> str:
        """What of an attempt in a sandbox no other process can have; empty where its files and turns are all."""
        own = sorted(set(task.tools) - set(WORKSPACE_TOOLS))
        if own:
            return f"what its tool {own[0]!r} did may be in its memory"
        if isinstance(self.context, Retrieve):
            return "its notes are in its memory"
        return "" if self.carrying is not None else "its workspace stays where it is"

    @contextlib.asynccontextmanager
    async def _lent(self, task: Task, wall_s: float, course: Course) -> AsyncIterator[Lent | None]:
        needed = needs_session(task.tools)
        # Files alone: for the tools of a domain, where this process has a sandbox.
        if not needed and not (task.files and self.sessions):
            yield None
            return
        if self.sessions is None:
            raise ContractError(
                f"task {task.group_id} has the tools {list(task.tools)}, which need a sandbox, and this process has none"
            )
        kept = course.before.workspace if course.before else None
        if kept is not None and self.carrying is None:
            raise OtherContextError("its workspace is in a store, and this process has none")
        async with leased(self.sessions, task, task.files if kept is None else {}, wall_s) as lent:
            if kept is not None and self.carrying is not None:
                await self.carrying.put_back(lent.session, kept)
            yield lent


def _check_alive(lent: Lent | None, wall_s: float) -> None:
    """A session whose lease is over refuses everything: the policy must not be told so as if it were its own fault."""
    if lent is not None and not lent.renew(wall_s):
        raise SandboxFault("the sandbox session of an attempt was ended while it ran")
