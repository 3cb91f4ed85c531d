"""The endpoint as clients see it: the `openai` package, and what no client should send."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from services.rollout.agent import http
from services.rollout.agent.desk import Desk
from services.rollout.agent.endpoint import Endpoint
from services.rollout.engines.base import GenerateRequest, Generation
from services.rollout.turns.budgets import Budgets
from services.rollout.turns.tokens import Tokens
from shared.contracts import Sampling
from tests.rollout.agent.desks import ECHO, check, desk_of, user
from tests.rollout.agent.test_desk import calling
from tests.rollout.turns import templates
from tests.rollout.turns.scripted import AMPLE, ScriptedEngine, says, tokens_of


class Telling(ScriptedEngine):
    """Tells each token before the next, as an engine that decodes does."""

    hold: asyncio.Event | None = None
    begun = 0
    ended = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        self.begun += 1
        try:
            if request.heard is not None:
                for token in self.script(len(self.asked), request)[: request.max_tokens]:
                    request.heard(int(token))
                    await asyncio.sleep(0.001)
            if self.hold is not None:
                await self.hold.wait()
            return await super().generate(request)
        finally:
            self.ended += 1


@asynccontextmanager
async def opened(
    engine: Any, tokens: Tokens, budgets: Budgets = AMPLE, **more: Any
) -> AsyncIterator[tuple[Endpoint, Desk, str, openai.AsyncOpenAI]]:
    endpoint = Endpoint()
    await endpoint.start()
    desk = desk_of(engine, tokens, budgets, **more)
    key = endpoint.opened(desk)
    client = openai.AsyncOpenAI(base_url=f"http://{endpoint.address}/v1", api_key=key, max_retries=0)
    try:
        yield endpoint, desk, key, client
    finally:
        await client.close()
        await endpoint.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tiny", "qwen_like"])
def test_the_openai_client_talks_with_tools(tiny_tokenizer: Any, name: str) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.ALL[name])
    engine = ScriptedEngine(says(tokens, [calling(tokens, "a", "Now:"), "It says a."]))

    async def work() -> None:
        async with opened(engine, tokens) as (_, desk, _, client):
            history: list[Any] = [user("echo a")]
            first = await client.chat.completions.create(model="gpt-x", messages=history, tools=[ECHO])  # type: ignore[list-item]
            (choice,) = first.choices
            assert (first.model, choice.finish_reason, choice.message.content) == (
                "gpt-x",
                "tool_calls",
                "Now:",
            )
            assert choice.message.tool_calls is not None
            call: Any = choice.message.tool_calls[0]
            assert (call.function.name, json.loads(call.function.arguments)) == ("echo", {"text": "a"})
            history += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "a"}]
            last = await client.chat.completions.create(model="gpt-x", messages=history, tools=[ECHO])  # type: ignore[list-item]
            assert last.choices[0].message.content == "It says a."
            assert last.usage is not None
            assert last.usage.prompt_tokens == len(engine.asked[1].prompt)
            assert last.usage.completion_tokens == len(engine.asked[1].made.token_ids)
            assert [model.id for model in (await client.models.list()).data] == ["policy"]
            check(desk, engine)
            assert len(desk.sequences()) == 1

    run(work)


def test_a_stream_tells_text_as_it_is_sampled(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    engine = Telling(says(tokens, ["streamed text"]))

    async def work() -> None:
        async with opened(engine, tokens) as (_, desk, _, client):
            engine.hold = asyncio.Event()
            stream = await client.chat.completions.create(
                model="m",
                messages=[user("q")],
                stream=True,
                stream_options={"include_usage": True},  # type: ignore[list-item]
            )
            text, finish, usage, pieces = "", None, None, 0
            async for chunk in stream:
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    pieces += bool(choice.delta.content)
                    finish = choice.finish_reason or finish
                usage = chunk.usage or usage
                if text == "streamed text":
                    engine.hold.set()  # everything came while the turn was still sampled
            assert (text, finish) == ("streamed text", "stop")
            assert pieces > 5
            assert usage is not None
            assert usage.completion_tokens == len(engine.asked[0].made.token_ids)
            check(desk, engine)

    run(work)


def test_a_stream_of_a_turn_with_calls_is_the_whole_answer_in_chunks(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.QWEN_LIKE)
    engine = Telling(says(tokens, [calling(tokens, "b", "So:"), "done"]))

    async def work() -> None:
        async with opened(engine, tokens) as (_, desk, _, client):
            stream = await client.chat.completions.create(
                model="m",
                messages=[user("q")],
                tools=[ECHO],
                stream=True,  # type: ignore[list-item]
            )
            text, finish, arguments, name = "", "", "", ""
            async for chunk in stream:
                (choice,) = chunk.choices
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
                for call in choice.delta.tool_calls or ():
                    assert call.index == 0
                    assert call.function is not None
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
            assert (text, finish, name) == ("So:", "tool_calls", "echo")
            assert json.loads(arguments) == {"text": "b"}
            check(desk, engine)

    run(work)


def test_refusals_are_errors_that_the_client_knows(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    engine = ScriptedEngine(says(tokens, ["x"]))

    async def work() -> None:
        async with opened(
            engine, tokens, Budgets(1, 10, 100, 1000, 5, 60.0), sampling=Sampling(max_tokens=10)
        ) as (
            endpoint,
            desk,
            key,
            client,
        ):
            ask: Any = client.chat.completions.create
            with pytest.raises(openai.BadRequestError, match="this task samples with 1") as bad:
                await ask(model="m", messages=[user("q")], temperature=0.2)
            assert (bad.value.code, bad.value.param) == ("sampling_contradicted", "temperature")
            with pytest.raises(openai.NotFoundError, match="is not served"):
                await client.embeddings.create(model="m", input="x")
            assert (desk.refused, "embeddings" in desk.refusal) == (2, True)
            await ask(model="m", messages=[user("q")])
            with pytest.raises(openai.PermissionDeniedError, match="all turns"):
                await ask(model="m", messages=[user("q")], stream=True)
            other = openai.AsyncOpenAI(
                base_url=f"http://{endpoint.address}/v1", api_key="sk-other", max_retries=0
            )
            with pytest.raises(openai.AuthenticationError, match="no attempt has this key"):
                await other.models.list()
            await other.close()
            await endpoint.closed(key)
            with pytest.raises(openai.AuthenticationError, match="or it is over"):
                await ask(model="m", messages=[user("q")])
            assert desk.refused == 3

    run(work)


async def _read_all(client: openai.AsyncOpenAI, stream: bool) -> None:
    create: Any = client.chat.completions.create
    made = await create(model="m", messages=[user("q")], stream=stream)
    async for _ in made:
        pass


def test_a_client_that_goes_away_frees_its_place(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    engine = Telling(says(tokens, ["x"]))

    async def work() -> None:
        async with opened(engine, tokens) as (_, desk, _, client):
            engine.hold = asyncio.Event()
            for stream in (False, True):
                begun = engine.begun
                asking = asyncio.ensure_future(_read_all(client, stream))
                while engine.begun == begun:
                    await asyncio.sleep(0.01)
                asking.cancel()  # the client closes its connection
                with pytest.raises(asyncio.CancelledError):
                    await asking
                while engine.ended < engine.begun:
                    await asyncio.sleep(0.01)
            assert (engine.begun, desk.turns) == (2, 0)
            engine.hold.set()
            await client.chat.completions.create(model="m", messages=[user("q")])  # type: ignore[list-item]
            check(desk, engine)

    run(work)


def test_requests_of_an_attempt_that_ends_are_cut_off(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)
    engine = Telling(says(tokens, ["x"]))

    async def work() -> None:
        async with opened(engine, tokens) as (endpoint, desk, key, client):
            engine.hold = asyncio.Event()
            asking: Any = asyncio.ensure_future(
                client.chat.completions.create(model="m", messages=[user("q")])  # type: ignore[list-item]
            )
            while not engine.begun:
                await asyncio.sleep(0.01)
            await endpoint.closed(key)
            assert engine.ended == 1
            with pytest.raises(openai.APIConnectionError):
                await asking
            assert (desk.turns, desk.sequences()) == (0, ())

    run(work)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\r\n\r\n", b""),
        (b"hello\r\n\r\n", b"400"),
        (b"\xff\xfe\x00 / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/2\r\n\r\n", b"400"),
        (b"GET /v1/models HTTP/1.1\r\n" + b"a: b\r\n" * 9000 + b"\r\n", b"400"),
        (b"x" * (http.MOST_HEAD + 10), b"400"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -4\r\n\r\n", b"400"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"411"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", b"401"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer KEY\r\nContent-Length: 2\r\n\r\n{}", b"400"),
        (b"GET /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer KEY\r\n\r\n", b"405"),
        (b"GET /v1/models HTTP/1.1\r\nAuthorization: bearer KEY\r\nConnection: close\r\n\r\n", b"200"),
    ],
)  # fmt: skip
def test_what_is_no_request_costs_its_connection_alone(
    tiny_tokenizer: Any, sent: bytes, status: bytes
) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)

    async def work() -> None:
        async with opened(ScriptedEngine(says(tokens, ["x"])), tokens) as (endpoint, _, key, client):
            reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
            writer.write(sent.replace(b"KEY", key.encode()))
            answer = await reader.read()
            assert answer.partition(b"\r\n")[0].split(b" ")[1:2] == ([status] if status else [])
            writer.close()
            await client.chat.completions.create(model="m", messages=[user("q")])  # type: ignore[list-item]

    run(work)


def test_connections_that_say_nothing_leave_with_the_endpoint(tiny_tokenizer: Any) -> None:
    tokens = tokens_of(tiny_tokenizer, templates.TINY)

    async def work() -> None:
        async with opened(ScriptedEngine(says(tokens, ["x"])), tokens) as (endpoint, *_):
            silent = [await asyncio.open_connection("127.0.0.1", endpoint.port) for _ in range(50)]
            for _, writer in silent[:10]:
                writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
        for reader, _ in silent:
            with contextlib.suppress(ConnectionResetError):  # of those with something that nobody read
                assert await reader.read() == b""
        for _, writer in silent:
            writer.close()

    run(work)
