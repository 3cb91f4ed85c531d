"""What a root shows, and what it never shows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.sandbox.roots import PACKAGES, build_steps, default_root, installed_below


def test_our_own_packages_are_refused_by_name() -> None:
    for name in ("shared", "services.verifier", "temper", "temper-rl"):
        with pytest.raises(ConfigError, match="never goes into a jail"):
            default_root([name])


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(ConfigError, match="'no_such_package'"):
        default_root(["no_such_package"])


def test_only_named_packages_of_our_environment_are_shown() -> None:
    shown = default_root(["numpy"])
    ours = {target: source for target, source in shown.items() if "site-packages" in source}
    assert all(target.startswith(PACKAGES) and "numpy" in target for target in ours), ours


def test_installed_packages_below_a_prefix_are_covered(tmp_path: Path) -> None:
    """A wheel of ours in the system's Python would show every domain's generator."""
    for place in ("lib/python3.11/site-packages", "local/lib/python3.12/dist-packages"):
        (tmp_path / place / "shared" / "domains").mkdir(parents=True)
    covered = installed_below(str(tmp_path))
    assert covered == ["lib/python3.11/site-packages", "local/lib/python3.12/dist-packages"]
    steps = build_steps("/base", {"/usr": str(tmp_path)})
    for place in covered:
        assert ("bind_read_only", "/base/run", f"/base/usr/{place}") in steps


def test_a_package_brings_what_it_requires() -> None:
    names = {Path(target).name for target in default_root(["pytest"]) if target.startswith(PACKAGES)}
    assert {"pytest", "_pytest", "pluggy", "iniconfig"} <= names
    assert not {"shared", "services", "temper", "torch"} & names


def test_this_interpreter_is_shown() -> None:
    assert sys.base_prefix in default_root([]).values()
