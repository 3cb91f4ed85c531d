"""One client's connection: frames in, answers out, in the order of the requests.

Invariant: requests of a connection are handled one after the other, as Kafka does; a frame that is too large or that
can't be understood ends the connection and nothing else.
"""

import asyncio
import struct
from typing import Any

import structlog

from shared.bus.devbroker.apis import APIS, Api, announced
from shared.bus.devbroker.broker import Broker
from shared.bus.devbroker.caller import Caller, CloseConnection
from shared.bus.devbroker.codes import Code
from shared.bus.devbroker.faults import FaultAction, FaultRule
from shared.bus.devbroker.request_topics import topics_of
from shared.bus.devbroker.wire import RequestHead, WireError, encode_answer, read_body, read_head

FREEZE_POLL_S = 0.01


class Connection:
    """Serves one socket until either side closes it."""

    def __init__(self, broker: Broker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._broker = broker
        self._reader = reader
        self._writer = writer
        self._peer = str((writer.get_extra_info("peername") or ("unknown",))[0])
        self._local = str((writer.get_extra_info("sockname") or ("127.0.0.1",))[0])

    async def serve(self) -> None:
        log = structlog.get_logger()
        try:
            while True:
                frame = await self._next_frame()
                answer = await self._answer(frame)
                if answer is not None:
                    self._writer.write(answer)
                    await self._writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client went away
        except (WireError, CloseConnection) as reason:
            log.warning("devbroker.connection_closed", peer=self._peer, reason=str(reason))
        finally:
            self._writer.close()

    async def _next_frame(self) -> bytes:
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        limit = self._broker.settings.request_max_bytes
        if not 0 < size <= limit:
            raise WireError(f"a frame of {size} bytes is not between 1 and {limit}; is this a Kafka client?")
        return await self._reader.readexactly(size)

    async def _answer(self, frame: bytes) -> bytearray | None:
        head = read_head(frame)
        api = APIS.get(head.api_key)
        if api is None:
            raise WireError(f"client {head.client_id!r} sent API {head.api_key}, which is not served")
        if not api.min_version <= head.version <= api.max_version:
            return self._wrong_version(api, head)
        request = read_body(api.request_class, head, frame)
        caller = Caller(head.version, head.client_id, self._peer, self._local)
        answer = await self._handled(api, caller, request)
        if answer is None:
            return None
        return encode_answer(answer, head.version, head.correlation_id, api.header_is_flexible(head.version))

    def _wrong_version(self, api: Api, head: RequestHead) -> bytearray:
        if api.name != "ApiVersions":
            raise WireError(f"client {head.client_id!r} sent {api.name} v{head.version}, which is not served")
        # Clients start with the newest version they know, and read the v0 answer to find out (KIP-35).
        return encode_answer(announced(Code.UNSUPPORTED_VERSION), 0, head.correlation_id, False)

    async def _handled(self, api: Api, caller: Caller, request: Any) -> Any:
        faults = self._broker.faults
        if not faults.needed():
            return await api.handle(self._broker, caller, request)
        rule = faults.take(api.name, topics_of(request, self._broker.topics), caller.client_id)
        if rule is None:
            return await api.handle(self._broker, caller, request)
        return await self._faulty(rule, api, caller, request)

    async def _faulty(self, rule: FaultRule, api: Api, caller: Caller, request: Any) -> Any:
        if rule.action is FaultAction.DROP_CONNECTION:
            raise CloseConnection(f"fault rule: {api.name} dropped before any work")
        if rule.action is FaultAction.ERROR:
            if api.refuse is None:
                raise CloseConnection(
                    f"fault rule: {api.name} has no answer that carries an error; use a drop"
                )
            return api.refuse(self._broker, caller, request, rule.code)
        if rule.action is FaultAction.DELAY:
            await asyncio.sleep(rule.delay_ms / 1000)
        while rule.action is FaultAction.FREEZE and self._broker.faults.is_in_force(rule):
            await asyncio.sleep(FREEZE_POLL_S)
        answer = await api.handle(self._broker, caller, request)
        if rule.action is FaultAction.DROP_RESPONSE:
            raise CloseConnection(f"fault rule: the answer to {api.name} was dropped")
        return answer
