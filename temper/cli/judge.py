"""`temper judge --method NAME < in.jsonl > out.jsonl`: one verdict a line.

Invariant: line n of the output is the verdict on line n of the input, written at once; a line that is no record ends
the command with exit code 4 and its number.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer


class Method(StrEnum):
    ANSWER = "answer"


def judge(
    method: Annotated[
        Method, typer.Option("--method", help="answer: gold and answer under a declared type.")
    ],
    options: Annotated[
        str, typer.Option("--options", help='As JSON: \'{"type": "decimal", "absolute": "0.01"}\'.')
    ] = "{}",
) -> None:
    """Judge answers: JSON lines in, JSON lines out.

    For `answer` a line is {"gold", "answer", "type"?} and gives {"equal", "verdict", "reason"}.
    """
    import json
    import sys

    from shared.errors import ConfigError, ContractError
    from shared.verification.comparators.judging import AnswerMethod

    judging = AnswerMethod(_options(options))
    for number, line in enumerate(sys.stdin.buffer, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ContractError("it is no JSON object")
            verdict = judging.judge(record)
        except ConfigError as error:
            raise ConfigError(f"line {number}: {error}") from error
        except (ValueError, RecursionError, ContractError) as error:
            raise ContractError(f"line {number} is no record for method {method.value!r}: {error}") from error
        print(json.dumps(verdict, ensure_ascii=True), flush=True)


def _options(text: str) -> dict[str, Any]:
    import json

    from shared.errors import ConfigError

    example = '\'{"type": "decimal", "absolute": "0.01"}\''
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--options is {text!r}: {error}; give a JSON object such as {example}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"--options is {text!r}: give a JSON object such as {example}")
    return found
