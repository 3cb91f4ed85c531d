"""Every fault that was reported of such systems is held by tests of ours that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("field_faults.md")
_ID = re.compile(r"`(tests/[^`]+\.py::test_[^`]+)`")


def rows() -> list[list[str]]:
    """The cells of every row: reported, right, tests."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] not in ("reported", "trap", "---")]


@cache
def names_in(path: str) -> frozenset[str]:
    """The test functions of a module, those in classes included."""
    tree = ast.parse((ROOT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def missing(cell: str) -> list[str]:
    """Ids that there is no test of; the cell itself where it names none, or something beside ids."""
    ids = _ID.findall(cell)
    if not ids or _ID.sub("", cell).strip():
        return [cell]
    wrong = []
    for one in ids:
        path, _, name = one.partition("::")
        if not (ROOT / path).is_file() or name not in names_in(path):
            wrong.append(one)
    return wrong


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:60])
def test_a_reported_fault_is_held_by_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 3 and all(row)
    assert missing(row[2]) == []


def test_no_reported_fault_is_left_out() -> None:
    """26 of the training loop, 12 of the bus, 16 of sandbox and verifier, 3 of answers, 6 of objectives."""
    assert len(rows()) == 63 == len({row[0] for row in rows()})


def test_a_name_that_is_no_test_is_seen() -> None:
    here = "`tests/cases/test_field_faults.py::test_a_name_that_is_no_test_is_seen`"
    assert missing(here) == []
    assert missing(f"{here} and more") and missing("")
    assert missing("`tests/cases/test_field_faults.py::test_nothing`")
    assert missing("`tests/cases/test_nowhere.py::test_nothing`")
