"""`temper chat`: talk with a policy.

Invariant: on a terminal Ctrl-C ends the answer and Ctrl-D the talk; without one every line of standard input gets one
answer on standard output, and nothing else is printed there. The answer to a line that is refused is empty: standard
error says why, and so does the exit code at the end.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import ContractError
from temper.cli.attempt import ConfigOption, EngineOption, PolicyOption

if TYPE_CHECKING:
    import asyncio

    from shared.settings import Settings
    from temper.attempt.talk import Listener, Manner, Talk
    from temper.policies import FolderPolicy, RunPolicy


def chat(
    policy: PolicyOption,
    *,
    system: Annotated[str, typer.Option(help="The system message.")] = "",
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of one turn.")] = 512,
    seed: Annotated[int, typer.Option(min=0, help="Of the random numbers.")] = 0,
    tools: Annotated[
        bool, typer.Option("--tools", help="Gives it bash and python in a fresh sandbox.")
    ] = False,
    engine: EngineOption = None,
    config: ConfigOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object an answer: text, tokens, stop_reason, tool_calls.")
    ] = False,
) -> None:
    """Talk with a policy. Ctrl-C ends its answer, Ctrl-D leaves; piped, each line gets an answer."""
    import asyncio

    from temper.attempt.serving import settings_for
    from temper.attempt.talk import Manner
    from temper.cli.logs import logs_on_stderr
    from temper.policies import find_policy

    logs_on_stderr("chat")
    found = find_policy(policy)
    settings = settings_for(found, {"rollout": {"engine": engine}} if engine else {}, config)
    manner = Manner(system, temperature, max_tokens, seed)
    person = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    with asyncio.Runner() as runner:
        opened = _opened(settings, found, manner, tools)
        talk, decode = runner.run(opened.__aenter__())
        try:
            if person:
                print(f"policy {found}; Ctrl-C ends an answer, Ctrl-D the talk", flush=True)
            refused = [
                line
                for line in _lines(person)
                if not _answer(runner, talk, line, _listener(decode, person), as_json=as_json, person=person)
            ]
        finally:
            runner.run(opened.__aexit__(None, None, None))
    if refused and not person:
        raise typer.Exit(ContractError.exit_code)


def _answer(
    runner: asyncio.Runner, talk: Talk, line: str, listener: Listener, *, as_json: bool, person: bool
) -> bool:
    """One answer, or the beginning of one; False where the line was refused. Ctrl-C where nobody sits at a terminal
    ends the command, as everywhere."""
    from dataclasses import asdict

    from shared.plain_errors import counted
    from temper.attempt.talk import NoRoomError, Said
    from temper.attempt.terminal import harmless

    try:
        said = runner.run(talk.say(line, listener))
    except NoRoomError as error:
        print(f"[refused: {error}]" if person else f"temper: {error}", file=sys.stderr, flush=True)
        said = Said("", 0, "refused")
    except KeyboardInterrupt:
        if not person:
            raise
        print("[ended here]", flush=True)
        return True
    if as_json:
        shown = {**asdict(said), "tool_calls": [call.model_dump(mode="json") for call in said.tool_calls]}
        print(json.dumps(shown), flush=True)
    elif not person:
        print(harmless(said.text), flush=True)
    elif said.stop_reason not in ("stop", "refused"):
        print(f"[ended by {said.stop_reason} after {counted(said.tokens, 'token')}]", flush=True)
    return said.stop_reason != "refused"


def _listener(decode: Any, person: bool) -> Listener:
    from temper.attempt.show import call_line
    from temper.attempt.talk import Listener
    from temper.attempt.terminal import Pen, barred

    if not person:
        return Listener()
    pen = Pen(decode)

    def told(call: Any) -> None:
        print(f"[tool {call_line(call)}: {call.seconds:.2f} s]")
        print(barred(f"error: {call.error}" if call.error else call.result), flush=True)

    return Listener(pen.token, pen.end, told)


def _lines(person: bool) -> Iterator[str]:
    """Lines that are not blank, to the end of the input."""
    if not person:
        yield from (line.rstrip("\n") for line in sys.stdin if line.strip())
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # `input` then knows arrows and earlier lines
    while True:
        try:
            line = input("> ")
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            print()
            return
        if line.strip():
            yield line


@contextlib.asynccontextmanager
async def _opened(
    settings: Settings, policy: RunPolicy | FolderPolicy, manner: Manner, tools: bool
) -> AsyncIterator[tuple[Talk, Any]]:
    from shared.sandbox.limits import Limits
    from shared.verification.registered import sandbox_here
    from temper.attempt.serving import serving
    from temper.attempt.talk import Talk

    async with contextlib.AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(settings, policy))
        session = None
        if tools:
            box = await sandbox_here(settings.sandbox)
            stack.push_async_callback(box.close)
            session = await stack.enter_async_context(await box.session({}, Limits()))
        tokenizer, stops = served.codec.tokenizer, served.codec.stop_ids

        def decode(ids: Any) -> str:
            kept = [number for number in ids if number not in stops]
            return str(tokenizer.decode(kept, clean_up_tokenization_spaces=False))

        yield Talk(served.engine, served.codec, manner, session), decode
