"""docs/domains.md does what it says: its example is taken out of the page, admitted by place and when installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from shared.settings import parse_settings

PAGE = Path(__file__).parents[2] / "docs" / "domains.md"
TEMPER = [sys.executable, "-P", "-m", "temper", "domains"]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder as the page's reader has it, beside a `shared` of their own that must not be taken for ours."""
    (program,) = blocks("python")
    (tmp_path / "numerals.py").write_text(program)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "__init__.py").write_text("raise RuntimeError('somebody else s')")
    return tmp_path


def domains(*arguments: str, folder: Path, python_path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": python_path}
    return subprocess.run(
        [*TEMPER, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def import_path(place: Path, tmp: Path) -> str:
    """The reader's module alone: their other folders are not on the path."""
    alone = tmp / "alone"
    alone.mkdir()
    shutil.copy(place / "numerals.py", alone)
    return str(alone)


def test_the_example_is_admitted_by_its_place(place: Path, tmp_path: Path) -> None:
    path = import_path(place, tmp_path)
    result = domains("admit", "numerals:RomanNumerals", "--seeds", "4", folder=place, python_path=path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "roman_numerals version 1: admitted (8 instances, 8 different questions" in result.stdout
    shown = domains("show", "numerals:RomanNumerals", "--seed", "7", folder=place, python_path=path)
    assert shown.returncode == 0 and "as a Roman numeral" in shown.stdout and "small letters" in shown.stdout


def test_without_the_python_path_it_says_what_to_do(place: Path) -> None:
    result = domains("admit", "numerals:RomanNumerals", folder=place)
    assert result.returncode == 2 and "name the module's folder in PYTHONPATH" in result.stderr


def test_the_refusal_that_is_shown_is_the_one_that_is_printed(place: Path, tmp_path: Path) -> None:
    path = Path(import_path(place, tmp_path))
    text = (path / "numerals.py").read_text().replace("TextComparator(fold_case=False)", "TextComparator()")
    (path / "numerals.py").write_text(text)
    result = domains("admit", "numerals:RomanNumerals", folder=place, python_path=str(path))
    assert result.returncode == 1
    assert result.stdout in PAGE.read_text(encoding="utf-8"), result.stdout


def test_the_example_is_a_domain_like_those_built_in_once_it_is_installed(
    place: Path, tmp_path: Path
) -> None:
    """As an installer leaves it: the module and a dist-info folder with the entry points of the page's pyproject."""
    path = import_path(place, tmp_path)
    project = tomllib.loads(blocks("toml")[1])
    (group,) = project["project"]["entry-points"].items()
    assert project["tool"]["setuptools"]["py-modules"] == ["numerals"]
    name, version = project["project"]["name"].replace("-", "_"), project["project"]["version"]
    metadata = Path(path) / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = "\n".join(f"{key} = {value}" for key, value in group[1].items())
    (metadata / "entry_points.txt").write_text(f"[{group[0]}]\n{points}\n")
    result = domains("admit", "roman_numerals", "--seeds", "2", folder=place, python_path=path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "roman_numerals" in domains("list", folder=place, python_path=path).stdout


@pytest.mark.slow
def test_the_page_s_package_installs(place: Path, tmp_path: Path) -> None:
    """With an installer, into a folder of its own; the build back end is the one of this environment."""
    if not (Path(sysconfig.get_paths()["purelib"]) / "setuptools").is_dir():
        pytest.fail("setuptools is needed to build: it is a requirement of this project's own build")
    source = tmp_path / "package"
    source.mkdir()
    shutil.copy(place / "numerals.py", source)
    (source / "pyproject.toml").write_text(blocks("toml")[1])
    target = tmp_path / "site"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-build-isolation",
            "--no-deps",
            "--target",
            str(target),
            ".",
        ],
        cwd=source,
        check=True,
        timeout=200,
    )
    result = domains("admit", "roman_numerals", "--seeds", "1", folder=place, python_path=str(target))
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_run_s_lines_are_settings() -> None:
    document = tomllib.loads(blocks("toml")[0])
    settings = parse_settings(
        {"run": {"name": "r"}, "model": {"path": "m"}, "stages": [{"kind": "rl", "steps": 1}], **document}
    )
    assert settings.domains[0].name == "numerals:RomanNumerals" and settings.domains[0].max_tokens == 16
