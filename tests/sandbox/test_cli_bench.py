"""`temper bench` runs what is in the checkout, and says so where there is none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_an_unknown_benchmark_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "temper", "bench", "nothing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "nothing.py" in done.stderr and "sandbox" in done.stderr and done.stderr.count("\n") == 1


def test_an_installed_package_has_no_benchmarks(tmp_path: Path) -> None:
    for name in ("temper", "shared", "services"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['temper', 'bench', 'sandbox']; from temper.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 3 and "checkout" in done.stderr, done
