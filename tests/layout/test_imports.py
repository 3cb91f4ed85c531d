"""Import boundaries: who may import whom, and what the face of the project costs.

`services/*` import `shared/*`; `shared/*` imports no service; no service imports another; nothing but tests
imports `temper`; torch, vllm and the like are imported by the service that needs them, when it runs.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "vllm", "matplotlib", "kafka", "opentelemetry.sdk", "numpy", "pydantic")
SERVICES = ("scheduler", "rollout", "verifier", "learner")


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function."""
    found: set[str] = set()
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            found.add(".".join([*base, *([node.module] if node.module else [])]))
    return found


def files_of(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, f"no files in {folder}: this test would pass for nothing"
    return found


def offenders(folder: str, forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files_of(folder)
        for name in imports_of(path)
        if any(name == item or name.startswith(f"{item}.") for item in forbidden)
    ]


def test_shared_imports_no_service_and_no_face() -> None:
    assert offenders("shared", ("services", "temper", "tests")) == []


@pytest.mark.parametrize("service", SERVICES)
def test_no_service_imports_another_nor_the_face(service: str) -> None:
    others = tuple(f"services.{name}" for name in SERVICES if name != service)
    assert offenders(f"services/{service}", (*others, "temper", "tests")) == []


def test_the_walk_sees_an_offender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "bad.py").write_text("def f():\n    from services.learner import service\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert offenders("shared", ("services",)) == ["shared/bad.py imports services.learner"]


def run(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )  # fmt: skip


def test_help_is_quick_and_imports_nothing_heavy(tmp_path: Path) -> None:
    probe = (
        "import sys\nsys.argv = ['temper', '--help']\n"
        "from temper.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert e.code == 0, e.code\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    result = run(["-c", probe], tmp_path)
    assert "HEAVY []" in result.stdout, result.stdout + result.stderr
    for service in SERVICES:
        assert service in result.stdout


@pytest.mark.parametrize("service", SERVICES)
def test_shared_contracts_and_bus_need_no_torch(service: str, tmp_path: Path) -> None:
    probe = (
        f"import sys, services.{service}.service\n"
        "print('TORCH', [m for m in ('torch', 'vllm', 'transformers') if m in sys.modules])"
    )
    result = run(["-c", probe], tmp_path)
    assert "TORCH []" in result.stdout, result.stderr


def test_the_command_runs_in_a_folder_with_its_own_shared_and_services(tmp_path: Path) -> None:
    for name in ("shared", "services", "temper"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            "raise RuntimeError('the current folder was imported')\n"
        )
    command = Path(sys.executable).with_name("temper")
    for arguments in ([str(command), "--help"], [str(command), "up", "nothing.toml"]):
        result = subprocess.run(
            arguments, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert "current folder was imported" not in result.stdout + result.stderr
    assert "nothing.toml: no such file" in result.stderr
    assert result.returncode == 2
