"""`sql_result`: a query of the policy's on a hidden database, by the rows it gives.

Invariant: the query runs in a jail that holds the hidden data and not the expected rows; those are given, or come from
a reference query in another jail. It reads tables and does nothing else; rows are compared out here, cell by cell.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.errors import VerificationFault
from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.verification.detectors.flags import Flag
from shared.verification.detectors.output import flags_of_output
from shared.verification.detectors.wording import flags_of_literal, hedges
from shared.verification.guest.codec import Decoder, Encoder, TooLarge
from shared.verification.guest.kinds import Malformed
from shared.verification.guest.sql import MAX_RESULT
from shared.verification.judgement import Judgement
from shared.verification.methods.base import Request, reader_ended, too_long
from shared.verification.methods.jails import guest
from shared.verification.methods.tables import Arrangement, Row, cell_of, same_rows

_START, _FINISHED = b"T", b"F"
_EVENTS = {
    "attached": Flag.READS_PROC_OR_DISK,
    "catalogue": Flag.READS_PROC_OR_DISK,
    "denied": Flag.TEST_FILES_TOUCHED,
}
"""A query that attaches a file, reads the catalogue of tables, or writes."""


class SqlOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rows: Arrangement = "bag"
    column_names: bool = False
    """Whether the names of the columns must agree too, in any case of letters."""
    tolerance: float = Field(default=1e-9, ge=0)
    """Relative, between two numbers of which one is a real."""
    steps: int = Field(default=50_000_000, ge=1000)
    """Of SQLite's virtual machine; about a second's work."""
    max_rows: int = Field(default=50_000, ge=1)


class SqlResult(Request):
    """`setup`: a script that makes the hidden database; or `database`: its image, in base64; or both, image first.

    Expected: `expected` rows (with `expected_columns` where names count), or a `reference` query.
    """

    query: str
    setup: str = ""
    database: str = ""
    expected: tuple[tuple[Any, ...], ...] | None = None
    expected_columns: tuple[str, ...] = ()
    reference: str = ""
    options: SqlOptions = SqlOptions()

    @model_validator(mode="after")
    def _one_expectation(self) -> Self:
        if (self.expected is None) == (not self.reference):
            raise ValueError("give either `expected` rows or a `reference` query")
        try:
            self.image()
            self.expected_rows()
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"`database` or `expected` is unreadable: {error}") from error
        return self

    def image(self) -> bytes | None:
        return base64.b64decode(self.database, validate=True) if self.database else None

    def expected_rows(self) -> list[Row]:
        return [tuple(map(cell_of, row)) for row in self.expected or ()]


class _Table(BaseModel):
    """What a query came to."""

    outcome: str
    columns: list[str]
    rows: list[Any]
    events: list[str]


async def check(sandbox: Sandbox, request: SqlResult, limits: Limits) -> Judgement:
    """Raises `SandboxFault`, and `VerificationFault` where the set-up or the reference query is wrong."""
    refused = too_long(request.query, "query")
    if refused is not None:
        return refused
    found = await _run(sandbox, request, request.query, limits)
    if isinstance(found, Judgement):
        return found
    flags = {_EVENTS[event] for event in found.events if event in _EVENTS} | _betrayed(request.query, found)
    if "table" not in found.events and found.outcome == "rows":
        flags.add(Flag.KNOWN_ANSWERS_EMBEDDED)
    if found.outcome == "setup":
        raise VerificationFault(f"the hidden database cannot be made ({found.events}); mend the domain")
    judged = _not_rows(found, request.options) or await _compared(sandbox, request, found, limits)
    return judged.flagged(flags)


async def _compared(sandbox: Sandbox, request: SqlResult, found: _Table, limits: Limits) -> Judgement:
    options = request.options
    columns, expected = list(request.expected_columns), request.expected_rows()
    if request.reference:
        wanted = await _run(sandbox, request, request.reference, limits)
        if isinstance(wanted, Judgement) or wanted.outcome != "rows":
            raise VerificationFault("the reference query gives no rows within its limits; mend the domain")
        columns, expected = wanted.columns, wanted.rows
    if options.column_names and [c.lower() for c in columns] != [c.lower() for c in found.columns]:
        return Judgement.failed("the columns have other names")
    width = len(expected[0]) if expected else len(columns or found.columns)
    if len(found.columns) != width:
        return Judgement.failed(f"the result has {len(found.columns)} columns, which is a wrong number")
    if same_rows(options.rows, expected, found.rows, options.tolerance):
        return Judgement.passed()
    if len(found.rows) != len(expected):
        return Judgement.failed(f"the result has {len(found.rows)} rows, which is a wrong number")
    return Judgement.failed("the result has wrong rows")


def _betrayed(query: str, found: _Table) -> set[Flag]:
    """What the query's text and the first rows of its result say."""
    flags = flags_of_literal(query)
    texts = [cell[1] for row in found.rows[:20] for cell in row if cell[0] == "text"]
    if any(hedges(text.decode("utf-8", "replace")) for text in texts):
        flags.add(Flag.HEDGED_ANSWER)
    return flags | set(flags_of_output(*texts))


def _not_rows(found: _Table, options: SqlOptions) -> Judgement | None:
    match found.outcome:
        case "rows":
            return None
        case "error":
            return Judgement.failed(f"the query raised {found.columns[0] if found.columns else 'an error'}")
        case "nothing":
            return Judgement.failed("the query asks for nothing")
        case "denied":
            return Judgement.failed("the query does more than read tables")
        case "budget":
            return Judgement.failed(f"the query took over {options.steps} steps").flagged(
                [Flag.LIMIT_REACHED]
            )
        case "too_many":
            return Judgement.failed(f"the result has over {options.max_rows} rows, or too much data")
        case _:
            return None


async def _run(sandbox: Sandbox, request: SqlResult, query: str, limits: Limits) -> _Table | Judgement:
    """The query's rows, or the failure of a process that did not live to give them."""
    options = request.options
    job = (request.setup, request.image(), query, options.steps, options.max_rows)
    try:
        frame_out = _START + Encoder().encode(job)
    except TooLarge as error:
        raise VerificationFault(f"the hidden database cannot be sent: {error}; mend the domain") from error
    async with guest(sandbox, "sql", limits) as child:
        await child.send(frame_out)
        frame = await child.receive()
        if frame is None:
            return reader_ended(await child.finish(), "the query")
    try:
        if frame[:1] != _FINISHED or len(frame) > MAX_RESULT + 1:
            raise Malformed("another frame")
        outcome, columns, rows, events = Decoder().decode(frame[1:])
        return _Table(outcome=outcome, columns=columns, rows=rows, events=events)
    except (Malformed, ValueError, TypeError) as error:
        raise SandboxFault("a query's process ended with a report that nobody can read") from error
