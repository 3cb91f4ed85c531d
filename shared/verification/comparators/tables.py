"""Tables: rows of cells, as a sequence, a set or a bag of rows.

Invariant: every cell is compared under its column's type, and rows are matched as a whole; work is bounded by the
product of the row counts, which are capped, and by one pool for all formulas of a table.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from shared.verification.answers import Refusal, shown
from shared.verification.comparators.base import Comparator
from shared.verification.comparators.formula.limits import POOL_WORK, Work
from shared.verification.comparators.json_fields import as_text, read_json, unfenced
from shared.verification.comparators.numbers import read_number
from shared.verification.comparators.text import TextComparator

MAX_ROWS = 256
MAX_UNORDERED_ROWS = 100
"""Every row is compared with every row: 10,000 comparisons at up to 30 µs."""
MAX_COLUMNS = 32
Row = tuple[Any, ...]
_RULE = re.compile(r"\|?[\s:|-]+\|?")
_TEXT = TextComparator()


@dataclass(frozen=True, slots=True)
class Table:
    """`header` is empty where none was written."""

    header: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class TableComparator(Comparator[Table]):
    """JSON (a list of lists, or of objects), Markdown with pipes, or CSV.

    `columns` declares each column's type by name and their order: objects and tables with a header are brought into
    it, rows without a header are taken in it. Without `columns`, cells are numbers where both are, and text
    otherwise, and headers must agree. `rows`: whether order (`sequence`), repetition (`bag`) or neither (`set`) counts.
    """

    kind: ClassVar[str] = "table"
    max_chars: ClassVar[int] = 65_536
    columns: Mapping[str, Comparator[Any]] = field(default_factory=dict)
    rows: Literal["sequence", "set", "bag"] = "sequence"
    header: bool = True
    """Whether the first line of CSV names the columns."""

    def read(self, bare: str) -> Table | Refusal:
        text = unfenced(bare)
        try:
            table = _from_json(text) if text.lstrip().startswith("[") else self._from_lines(text)
        except (ValueError, csv.Error, RecursionError) as error:
            return Refusal(f"{shown(bare)} is no table: {error}")
        if len(table.rows) > MAX_ROWS or any(len(row) > MAX_COLUMNS for row in table.rows):
            return Refusal(f"a table of over {MAX_ROWS} rows or {MAX_COLUMNS} columns")
        if self.rows != "sequence" and len(table.rows) > MAX_UNORDERED_ROWS:
            return Refusal(f"a table of over {MAX_UNORDERED_ROWS} rows in any order")
        arranged = self._arranged(table)
        return arranged if isinstance(arranged, Refusal) else self._typed(arranged)

    def same(self, left: Table, right: Table) -> bool:
        if left.header and right.header and left.header != right.header:
            return False
        first, second = sorted((left, right), key=repr)
        if self.rows == "sequence":
            kinds = self._kinds(Work(POOL_WORK))
            return len(first.rows) == len(second.rows) and all(
                self._rows(a, b, kinds) for a, b in zip(first.rows, second.rows, strict=True)
            )
        matches = self._matches(first, second)
        if self.rows == "set":
            return all(matches) and len({other for row in matches for other in row}) == len(second.rows)
        return _as_bags(matches, len(second.rows))

    def undone(self, expected: Table, found: Table) -> bool:
        """Whether any cell is, beside the first of its column in the expected table."""
        kinds, first = list(self.columns.values()), expected.rows[:1]
        return (
            any(
                kind.undone(wanted, cell)
                for row in found.rows
                for kind, wanted, cell in zip(kinds, *first, row, strict=False)
            )
            if kinds and first
            else False
        )

    def _from_lines(self, text: str) -> Table:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if lines and all("|" in line for line in lines):
            cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
            ruled = len(lines) > 1 and _RULE.fullmatch(lines[1]) is not None
            return Table(_names(cells[0]) if ruled else (), tuple(cells[2:] if ruled else cells))
        rows = [
            tuple(cell.strip() for cell in row)
            for row in csv.reader(io.StringIO("\n".join(lines)), strict=True)
        ]
        if self.header and rows:
            return Table(_names(rows[0]), tuple(rows[1:]))
        return Table((), tuple(rows))

    def _arranged(self, table: Table) -> Table | Refusal:
        """Columns in the declared order, every row of one length."""
        width = len(self.columns) or len(table.header) or (len(table.rows[0]) if table.rows else 0)
        for row in table.rows:
            if len(row) != (len(table.header) or width):
                return Refusal(
                    f"a row of {len(row)} cells in a table of {len(table.header) or width} columns"
                )
        if not self.columns or not table.header:
            return table
        wanted = tuple(name.casefold() for name in self.columns)
        if sorted(wanted) != sorted(table.header):
            return Refusal(f"the columns are {shown(', '.join(table.header), 80)}: others are asked for")
        order = [table.header.index(name) for name in wanted]
        return Table(wanted, tuple(tuple(row[index] for index in order) for row in table.rows))

    def _typed(self, table: Table) -> Table | Refusal:
        """Every cell read once: as its column declares, or as a number or text."""
        kinds = self._kinds(Work(POOL_WORK))
        rows = []
        for number, row in enumerate(table.rows, start=1):
            cells = tuple(_cell(cell, kinds[index] if kinds else None) for index, cell in enumerate(row))
            for cell in cells:
                if isinstance(cell, Refusal):
                    return Refusal(f"row {number}: {cell.reason}")
            rows.append(cells)
        return Table(table.header, tuple(rows))

    def _kinds(self, pool: Work) -> list[Comparator[Any]]:
        return [comparator.within(pool) for comparator in self.columns.values()]

    def _rows(self, left: Row, right: Row, kinds: list[Comparator[Any]]) -> bool:
        if len(left) != len(right):
            return False
        if not kinds:
            return left == right
        return all(_same(a, b, kind) for a, b, kind in zip(left, right, kinds, strict=True))

    def _matches(self, left: Table, right: Table) -> list[list[int]]:
        """For each row on the left the rows on the right that equal it."""
        kinds = self._kinds(Work(POOL_WORK))
        out = []
        for a in left.rows:
            out.append([j for j, b in enumerate(right.rows) if self._rows(a, b, kinds)])
        return out


def _cell(cell: Any, kind: Comparator[Any] | None) -> Any:
    text = as_text(cell)
    if kind is not None:
        return kind.parse(text)
    number = read_number(text.strip()) if len(text) < 200 else Refusal("")
    if not isinstance(number, Refusal):
        return number
    value = _TEXT.parse(text)
    return "" if isinstance(value, Refusal) else value


def _same(left: Any, right: Any, kind: Comparator[Any]) -> bool:
    return bool(left == right) or kind.same(left, right)


def _as_bags(matches: list[list[int]], others: int) -> bool:
    """Whether every row has a partner of its own (augmenting paths): with tolerances, greedy would not be exact."""
    if len(matches) != others:
        return False
    partner: dict[int, int] = {}

    def placed(row: int, seen: set[int]) -> bool:
        for other in matches[row]:
            if other not in seen:
                seen.add(other)
                if other not in partner or placed(partner[other], seen):
                    partner[other] = row
                    return True
        return False

    return all(placed(row, set()) for row in range(others))


def _from_json(text: str) -> Table:
    value = read_json(text)
    if all(isinstance(row, list) for row in value):
        return Table((), tuple(tuple(row) for row in value))
    if all(isinstance(row, dict) for row in value):
        header = sorted({name for row in value for name in row})
        if any(len(row) != len(header) for row in value):
            raise ValueError("rows with different columns")
        return Table(_names(header), tuple(tuple(row[name] for name in header) for row in value))
    raise ValueError("rows are lists or objects")


def _names(cells: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(" ".join(cell.split()).casefold() for cell in cells)
    if len(set(names)) != len(names):
        raise ValueError("two columns of one name")
    return names
