"""What a rollout process does with tasks that have tools or several turns.

Invariant: a process that gets no such task opens nothing for them: no sandbox, no domain, no endpoint, and no demand on
its tokenizer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from services.rollout.agent.attempt import AgentRunner
from services.rollout.agent.endpoint import Endpoint
from services.rollout.chat import ChatCodec
from services.rollout.engines.base import Engine
from services.rollout.handing_back import HandingBack
from services.rollout.turns.carrying import Carrying
from services.rollout.turns.multi_turn import Attempts, MultiTurn, Send, WaitForPolicy
from services.rollout.turns.places import Places
from services.rollout.turns.runner import Runner
from services.rollout.turns.terms import largest_limits, with_terms
from services.rollout.turns.tokens import Tokens
from shared.contracts import Task, ToolCall
from shared.domains.agent import AgentProgram
from shared.domains.base import Domain
from shared.domains.registry import load_domains
from shared.settings import Settings
from shared.storage import ObjectStore
from shared.telemetry.tracing import Tracing

SESSIONS_PER_ROW = 2
"""Sandbox sessions for each place in the engine's batch: while one attempt's tools run, another one samples."""


class TurnsWork:
    """`attempt` as `SingleTurn.attempt`; `close` at the end. Of one event loop."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        codec: ChatCodec,
        *,
        tracing: Tracing,
        worker_id: str,
        wait_for_policy: WaitForPolicy,
        told: Callable[[ToolCall], None] = lambda call: None,
        handing_back: HandingBack | None = None,
    ) -> None:
        """`told`: of every tool call, as soon as it is over. `handing_back` None: attempts end here or not at all."""
        self._handing_back = handing_back
        self._told = told
        self._settings = settings
        self._engine = engine
        self._codec = codec
        self._tracing = tracing
        self._worker_id = worker_id
        self._wait_for_policy = wait_for_policy
        self._places = Places(
            settings.sandbox, settings.rollout.max_batch * SESSIONS_PER_ROW, largest_limits(settings)
        )
        self._opening = asyncio.Lock()
        self._made: MultiTurn | None = None
        self._endpoint = Endpoint()

    @staticmethod
    def takes(task: Task) -> bool:
        return bool(task.tools) or task.limits.turns != 1

    @property
    def sessions(self) -> int:
        """Sandbox sessions lent now."""
        return self._places.lent

    async def attempt(self, task: Task, send: Send) -> None:
        """Raises what `MultiTurn.attempt` raises, `ConfigError` where domains or tokenizer cannot be used."""
        async with self._opening:
            if self._made is None:
                self._made = await self._make()
        await self._made.attempt(task, send)

    async def close(self) -> None:
        await self._endpoint.close()
        await self._places.close()

    async def _make(self) -> MultiTurn:
        # Names come from the settings: a name in a task alone never has anything imported.
        names = [domain.name for domain in self._settings.domains]
        domains = await asyncio.to_thread(load_domains, names)
        plain = Runner(
            engine=self._engine,
            tokens=Tokens(self._codec.tokenizer, self._codec.stop_ids),
            sessions=self._places,
            domain_of=domains.get,
            carrying=Carrying(ObjectStore(self._settings.storage_uri), self._settings.run.name),
            turns_of=_turns_of(self._engine),
            told=self._told,
        )
        runners: dict[str, Attempts] = {}
        for name in names:
            runner = with_terms(plain, self._settings.episode_of(name))
            program = await asyncio.to_thread(self._program, domains[name], name)
            # Under the name that tasks carry: it differs where the settings give a domain's place.
            runners[domains[name].name] = runner if program is None else await self._by(program, runner)
        return MultiTurn(
            lambda task: runners.get(task.domain.name, plain),
            self._tracing,
            self._settings.run.seed,
            self._worker_id,
            self._wait_for_policy,
            self._handing_back,
        )

    def _program(self, domain: Domain, name: str) -> AgentProgram | None:
        """The operator's wins over the domain's own. Raises `ConfigError`."""
        return self._settings.agent_of(name) or domain.agent

    async def _by(self, program: AgentProgram, runner: Runner) -> Attempts:
        if not self._endpoint.port:
            await self._endpoint.start()
        return AgentRunner(
            engine=runner.engine,
            tokens=runner.tokens,
            sessions=self._places,
            endpoint=self._endpoint,
            program=program,
            keeping=runner.keeping,
            format=runner.format,
            turns_of=runner.turns_of,
            told=runner.told,
        )


def _turns_of(engine: Engine) -> Callable[[str], AbstractAsyncContextManager[None]]:
    """Around an episode, where the engine waits for whole episodes before a new policy goes in."""
    found: Callable[[str], AbstractAsyncContextManager[None]] | None = getattr(engine, "episode", None)
    return found or (lambda name: contextlib.nullcontext())
