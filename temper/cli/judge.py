"""`temper judge --method NAME < in.jsonl > out.jsonl`: one verdict a line.

Invariant: line n of the output is the verdict on line n of the input; a line that cannot be judged gives
`{"error": …}` in its place, stops nothing, and makes the exit code 4 at the end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

BAD_LINES = 4
NAMES = (
    "answer", "python_function_tests", "program_tests", "pytest_suite", "property_check", "sql_result", "geometry",
    "state_diff", "replay",
)  # fmt: skip
"""Written out, so that `--help` imports none of them; a test compares them with the registry."""


def judge(
    method: Annotated[str, typer.Option("--method", help=f"One of {', '.join(NAMES)}.")],
    options: Annotated[
        str,
        typer.Option(
            "--options", help='JSON, or a file of it: \'{"type": "decimal"}\', \'{"limits": {"wall_s": 5}}\'.'
        ),
    ] = "{}",
    config: Annotated[Path | None, typer.Option("--config", help="A run's TOML, for its [sandbox].")] = None,
) -> None:
    """Judge attempts: JSON lines in, JSON lines out, in the same order.

    What a line holds, by method; docs/judging.md says more, with an example of each:

    answer: gold, answer, type?

    python_function_tests: candidate, entry_point, test (it defines check(candidate) in plain asserts), prelude?,
    visible?, in_place?

    program_tests: candidate or argv and files; cases [{stdin, expected, arguments?, comparator?}], visible?, options?

    pytest_suite: files, hidden, named, original?, binary?, visible?, options?

    property_check: candidate and entry_point, or output; inputs; property or source; visible?

    sql_result: query, setup or database, expected or reference, expected_columns?, options?

    geometry: format, text or base64, expected, keep_out?, partial?

    state_diff: expected, found, original?, options?

    replay: simulator, state, actions, options?

    Every line gives {"verdict", "reward", "reason", "flags"}; for `answer` {"equal", "verdict", "reason"}. passed,
    failed and partial are the attempt's own; unverifiable and infrastructure are our faults and carry no reward.
    `limits` in the options, or in a line, are those of a jail (wall_s, cpu_s, memory_mb, processes, …). A line's `id`
    and `task_id` are given back; other keys that no field has are ignored, and named once on stderr.
    """
    import sys

    from shared.errors import ConfigError
    from shared.plain_errors import counted

    if method not in NAMES:
        raise ConfigError(f"method {method!r} is unknown; known: {', '.join(NAMES)}")
    given = _options(options)
    lines = sys.stdin.buffer
    if method == "answer":
        from shared.verification.comparators.judging import AnswerMethod
        from temper.cli.judging import Keys, judge_in_order

        errors = judge_in_order(AnswerMethod(given).judge, lines, Keys(method, ("gold", "answer", "type")))
    else:
        from temper.cli.judging import judge_lines
        from temper.cli.logs import logs_on_stderr

        logs_on_stderr("judge")
        errors = judge_lines(method, given, lines, _sandbox(config))
    if errors:
        lines_said = counted(errors, "line")
        print(f"temper: {lines_said} could not be judged; each says why in its place", file=sys.stderr)
        raise typer.Exit(BAD_LINES)


def _options(text: str) -> dict[str, Any]:
    """Raises `ConfigError`."""
    import json

    from shared.errors import ConfigError
    from shared.plain_errors import said

    example = '\'{"type": "decimal", "absolute": "0.01"}\''
    shown = text if len(text) < 60 else f"{text[:59]}…"
    try:
        if not text.lstrip().startswith("{") and Path(text).is_file():
            text = Path(text).read_text(encoding="utf-8")
        found = json.loads(text)
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"--options is {shown!r}: {said(error)}; give a JSON object such as {example}, or a file"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(f"--options is {shown!r}: give a JSON object such as {example}")
    return found


def _sandbox(config: Path | None) -> Any:
    """The settings of the sandbox: a run's, or those of the machine as it is."""
    from shared.sandbox.settings import SandboxSettings

    if config is None:
        return SandboxSettings()
    from shared.settings import load_settings

    return load_settings(config).sandbox
