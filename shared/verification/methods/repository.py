"""The tree that hidden tests run in: the policy's work, with everything a test runner trusts put back.

Invariant: pure; what the runner reads by itself, what would shadow it, and every test come from the original or the
hidden files, never from the policy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from shared.verification.detectors.tree import is_configuration, shadows

_TEST = re.compile(r"(?:^|/)(?:tests?/|test_[^/]*\.py$|[^/]*_test\.py$)")
_NEVER = re.compile(r"(?:^|/)(?:\.git|__pycache__|\.pytest_cache)/|\.py[co]$")


def restored_tree(
    original: Mapping[str, bytes], policy: Mapping[str, bytes], hidden: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Path → content. Compiled files and version history are left out: nobody can read what they hold."""
    kept = {path: content for path, content in policy.items() if not is_protected(path)}
    restored = {path: content for path, content in original.items() if is_protected(path)}
    tree = {**kept, **restored, **hidden}
    return {path: content for path, content in sorted(tree.items()) if not _NEVER.search(path)}


def is_protected(path: str) -> bool:
    """Whether a path is the runner's: its configuration, its tests, or the name of a module it needs."""
    return is_configuration(path) or shadows(path) or _TEST.search(path) is not None


def has_conftest(tree: Mapping[str, bytes]) -> bool:
    return any(PurePosixPath(path).name == "conftest.py" for path in tree)
