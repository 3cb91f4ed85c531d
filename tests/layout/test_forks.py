"""A fork copies one thread and every lock that another one holds: only processes that are made for it do so."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SINGLE_THREADED = ("shared/sandbox/keeper/", "shared/sandbox/prewarmed/inside/")
"""Programs of their own, standard library alone: the keeper of jails, and the fork server inside of one."""
FORKS = {"fork", "forkpty", "fork_exec"}
MODULES = {"multiprocessing", "concurrent.futures.process"}


def forking(source: str) -> list[str]:
    """What in a module forks its own process, or may: calls by name, and libraries that do it unasked."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in {"os", "posix", "_posixsubprocess"} and node.attr in FORKS:
                found.append(node.attr)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {alias.name for alias in node.names}
            if node.module.split(".")[0] in MODULES or names & (FORKS | {"ProcessPoolExecutor"}):
                found.append(node.module)
        elif isinstance(node, ast.keyword) and node.arg == "preexec_fn":
            found.append("preexec_fn")
    return found


def test_only_single_threaded_programs_fork() -> None:
    modules = [path for part in ("shared", "services", "temper") for path in (ROOT / part).rglob("*.py")]
    assert len(modules) > 300
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in modules
        if not str(path.relative_to(ROOT)).startswith(SINGLE_THREADED)
        if (found := forking(path.read_text()))
    }
    assert wrong == {}


def test_the_walk_sees_an_offender() -> None:
    assert forking("import os\nif os.fork() == 0: pass") == ["fork"]
    assert forking("session.fork()") == []  # a sandbox's own, of a workspace
    assert forking("from concurrent.futures import ProcessPoolExecutor") == ["concurrent.futures"]
    assert forking("import multiprocessing as m") == ["multiprocessing"]
    assert forking("from multiprocessing import Pool") == ["multiprocessing"]
    assert forking("import subprocess\nsubprocess.run([], preexec_fn=print)") == ["preexec_fn"]
    assert forking("import subprocess\nsubprocess.run(['fork'])") == []
