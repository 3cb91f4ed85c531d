"""Follows the learner's announcements and keeps the engine on the newest attested policy (invariant 8).

Invariant: a version counts as served only after its bytes hashed to the announced digest and the engine reproduced
its canary. After a failed canary nothing is sampled until a retry from the full weights, fetched afresh, has
succeeded; wrong bytes never reach the engine, which goes on with what it serves. After two failures in a row the
follower ends with an `AttestationError`, the process leaves its group and its last heartbeat says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
import time
from pathlib import Path

import structlog

from services.rollout.engines.base import Engine
from services.rollout.following import Following
from services.rollout.pulling import PolicyPull
from shared.bus.producer import TypedProducer
from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts import Policy
from shared.errors import (
    AttestationError,
    BusError,
    DependencyError,
    DigestMismatchError,
    StorageError,
    TemperError,
)
from shared.plain_errors import one_line
from shared.settings import Settings
from shared.storage import ObjectStore
from shared.storage.cache import ObjectCache
from shared.storage.remote import Patience
from shared.weights.adapter import Base

_log = structlog.get_logger(__name__)
_POLL_S = 0.25
_BACKOFF_S = 1.0


class PolicyFollower:
    """`run` follows until it is cancelled; `at_least` waits for a version."""

    def __init__(self, settings: Settings, engine: Engine, producer: TypedProducer) -> None:
        self._settings = settings
        self._engine = engine
        self._producer = producer
        cache = ObjectCache(settings.run_folder / "cache" / "policies", settings.storage.cache_bytes)
        self._closing = threading.Event()
        # A store that is away is waited for here, where the heartbeat can say so.
        store = ObjectStore(settings.storage_uri, Patience(stop=self._closing.is_set))
        self._pull = PolicyPull(store, cache)
        self._base = Base(Path(settings.model.path), settings.model.dtype)
        self._scratch = Path(tempfile.mkdtemp(prefix="temper-policy-"))
        self._patience_s = settings.storage.patience_s
        self._following = Following(settings.run.name)
        self._waiting: list[tuple[int, asyncio.Future[int]]] = []
        self._unreadable_since: float | None = None
        self.load_seconds = 0.0
        """Of the last policy: fetch, digest, copy and canary."""
        self.moved_bytes = 0
        """Of the last policy, from the object store."""
        self.trouble = ""
        """Why a newer policy is not served yet, in words."""

    @property
    def version(self) -> int:
        return self._following.served

    @property
    def loading(self) -> int | None:
        """The version that is known and not yet served."""
        due = self._following.due()
        return None if due is None else due.version

    async def at_least(self, version: int) -> int:
        """The version served, once it is `version` or newer; cancel it to stop waiting."""
        if self.version >= max(version, 0):
            return self.version
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        entry = (max(version, 0), future)
        self._waiting.append(entry)
        try:
            return await future
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(entry)

    def oldest_wait(self) -> int | None:
        """The lowest version that somebody waits for."""
        return min((version for version, _ in self._waiting), default=None)

    async def run(self) -> None:
        """Raises `AttestationError` after the second failure, `StorageError` for weights that stay unreadable,
        `DependencyError` for an engine that cannot take them, and `EngineDiedError` once it has died."""
        tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._engine.watch())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # The engine's death is the cause of whatever the follower says at the same time.
            for task in reversed(tasks):
                if task.done():
                    task.result()
        finally:
            self._closing.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._pull.close()
            shutil.rmtree(self._scratch, ignore_errors=True)

    async def _follow(self) -> None:
        topic = TopicNames(self._settings.bus.namespace).policies
        reader = LogReader(self._settings, "rollout", [topic], "earliest", self._producer)
        try:
            while True:
                # The log may hold many versions: only the newest of what is there already is worth loading.
                if await self._read(reader) and reader.at_end():
                    policy = self._following.due()
                    if policy is not None:
                        await self._adopt(policy)
        finally:
            with contextlib.suppress(BusError):
                await reader.close()

    async def _read(self, reader: LogReader) -> bool:
        try:
            deliveries = await reader.poll(_POLL_S)
        except BusError as error:
            _log.warning("policies topic not readable", error=str(error))
            await asyncio.sleep(_BACKOFF_S)
            return False
        for delivery in deliveries:
            if isinstance(delivery.message, Policy):
                self._following.observe(delivery.message)
        return True

    async def _adopt(self, policy: Policy) -> None:
        started = time.monotonic()
        try:
            # After a failure nothing that lies here is trusted: the full weights, fetched afresh.
            afresh = self._following.failures > 0
            pulled = await asyncio.to_thread(self._pull.get, policy, afresh=afresh)
            await self._load(policy, pulled.path)
        except (AttestationError, DigestMismatchError) as error:
            await asyncio.to_thread(self._pull.refused, policy)
            self._refuse(policy, error)
        except StorageError as error:
            await self._be_patient(policy, error)
        else:
            self.load_seconds, self.moved_bytes = time.monotonic() - started, pulled.moved_bytes
            self._unreadable_since, self.trouble = None, ""
            self._following.succeeded(policy)
            await asyncio.to_thread(self._pull.served, policy, pulled)
            self._release()
            _log.info(
                "policy.served",
                version=policy.version,
                seconds=round(self.load_seconds, 3),
                fetch_seconds=round(pulled.seconds, 3),
                way=pulled.way,
                bytes=pulled.moved_bytes,
            )

    async def _load(self, policy: Policy, path: Path) -> None:
        try:
            whole = await asyncio.to_thread(self._base.whole, path, self._scratch / "whole.safetensors")
            await self._engine.load_policy(whole, policy.version, policy.canary)
        except TemperError:
            raise
        except (
            Exception
        ) as error:  # out of memory, a driver that failed: nothing that a second try here would mend
            raise DependencyError(
                f"policy {policy.version}: the engine cannot take its weights: {one_line(error)}"
            ) from error

    def _refuse(self, policy: Policy, error: Exception) -> None:
        self._following.failed(policy)
        self.trouble = str(error)
        if self._following.given_up:
            raise AttestationError(
                f"policy {policy.version} cannot be attested, this worker stops producing: {error}"
            ) from error
        _log.warning(
            "policy refused, its full weights are fetched once more", version=policy.version, error=str(error)
        )

    async def _be_patient(self, policy: Policy, error: StorageError) -> None:
        """Its object may have been pruned because newer ones exist, which the next poll will show."""
        now = time.monotonic()
        self._unreadable_since = self._unreadable_since or now
        self.trouble = f"policy {policy.version}: {error}"
        if now - self._unreadable_since > self._patience_s:
            raise StorageError(
                f"policy {policy.version} could not be read for {self._patience_s:.0f} s (storage.patience_s): {error}"
            ) from error
        _log.warning("policy not readable", version=policy.version, error=str(error))
        await asyncio.sleep(_BACKOFF_S)

    def _release(self) -> None:
        for version, future in self._waiting:
            if version <= self.version and not future.done():
                future.set_result(self.version)
