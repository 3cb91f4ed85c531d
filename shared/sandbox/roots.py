"""The read-only file system that programs in a jail see.

Invariant: a root shows declared folders only, none of them writable, no set-uid bit and no device in them. Our own
packages are never in it: a policy that could import a domain could make its answers.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shared.errors import ConfigError
from shared.sandbox.command import WORK
from shared.sandbox.keeper.client import KeeperClient

PYTHON = "/python"
PACKAGES = "/python-packages"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_EMPTY = ("/dev", "/dev/shm", "/proc", "/tmp", WORK, "/etc", "/run")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_PASSWD = "/etc/passwd"
Step = tuple[str | int, ...]


def default_root(packages: Sequence[str]) -> dict[str, str]:
    """What the default root shows, source by target: the system's programs, this Python, and named packages.

    Raises `ConfigError` for a package that is not installed or is one of ours.
    """
    shown = {target: target for target in _SYSTEM if Path(target).exists()}
    shown[PYTHON] = sys.base_prefix
    for name in packages:
        shown.update({f"{PACKAGES}/{path.name}": str(path) for path in _package(name)})
    for entry in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"):
        if Path(entry).exists():
            shown[entry] = str(Path(entry).resolve())
    return shown


def _package(name: str) -> Iterator[Path]:
    if name.partition(".")[0] in ("shared", "services", "temper"):
        raise ConfigError(f"sandbox.python_packages names {name!r}: our own code never goes into a jail")
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"sandbox.python_packages names {name!r}: no such package is installed here")
    place = Path(next(iter(spec.submodule_search_locations)))
    yield place
    libraries = place.with_name(f"{name}.libs")
    if libraries.is_dir():
        yield libraries


def build_steps(base: str, shown: Mapping[str, str]) -> list[Step]:
    """What the keeper does to make the tree at `base`, a folder on its own tmpfs. Symbolic links of the system's
    top (`/bin` -> `usr/bin`) become links, everything else a read-only bind."""
    steps: list[Step] = [("folder", base, 0o755, 0)]
    steps += [("folder", base + path, 0o755, 0) for path in _EMPTY]
    for target, source in sorted(shown.items()):
        path = Path(source)
        if Path(target).is_symlink() and target in _SYSTEM:
            steps.append(("link", str(Path(target).readlink()), base + target))
        elif path.is_dir():
            steps += [("folder", base + target, 0o755, 0), ("bind_read_only", source, base + target)]
        else:
            steps += [
                ("folder", str(Path(base + target).parent), 0o755, 0),
                ("file", base + target),
                ("bind_read_only", source, base + target),
            ]
    for device in _DEVICES:
        steps += [("file", f"{base}/dev/{device}"), ("bind", f"/dev/{device}", f"{base}/dev/{device}")]
    steps.append(("link", "/proc/self/fd", f"{base}/dev/fd"))
    return steps


class Roots:
    """Root trees by name, made once each."""

    def __init__(self, keeper: KeeperClient, declared: Mapping[str, str], packages: Sequence[str]) -> None:
        self._keeper = keeper
        self._declared = dict(declared)
        self._packages = tuple(packages)
        self._made: dict[str, str] = {}

    async def path(self, name: str) -> str:
        """Where the tree of this name is, as the keeper sees it. Raises `ConfigError` for an unknown name."""
        if name not in self._made:
            self._made[name] = await self._make(name)
        return self._made[name]

    async def _make(self, name: str) -> str:
        base = f"{self._keeper.folder}/roots/{name}"
        if name in self._declared:
            folder = Path(self._declared[name])
            if not folder.is_dir():
                raise ConfigError(f"sandbox.roots.{name} is {str(folder)!r}: no such folder")
            shown = {
                f"/{entry.name}": str(entry) for entry in folder.iterdir() if f"/{entry.name}" not in _EMPTY
            }
            if (folder / "etc").is_dir():
                shown |= {f"/etc/{entry.name}": str(entry) for entry in (folder / "etc").iterdir()}
        elif name == "default":
            shown = default_root(self._packages)
        else:
            known = ", ".join(sorted({"default", *self._declared}))
            raise ConfigError(f"root file system {name!r} is not declared; declared: {known}")
        for step in build_steps(base, shown):
            await self._keeper.do(step)
        return base
