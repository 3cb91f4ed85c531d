"""The read-only file system that programs in a jail see.

Invariant: a root shows declared folders only, none of them writable, no set-uid bit and no device in them. Our own
packages are never in it: a policy that could import a domain could make its answers.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from shared.errors import ConfigError
from shared.sandbox.command import WORK
from shared.sandbox.keeper.client import KeeperClient
from shared.sandbox.nsjail import INSIDE_UID

PYTHON = "/python"
"""A link to the prefix of the Python that runs us."""
PACKAGES = "/python-packages"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_EMPTY = ("/dev", "/dev/shm", "/proc", "/tmp", WORK, "/etc", "/run")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1",
          "/dev/stderr": "/proc/self/fd/2", "/etc/mtab": "/proc/self/mounts"}  # fmt: skip
_TEXTS = {
    "/etc/passwd": f"root:x:0:0:root:/:/bin/sh\njail:x:{INSIDE_UID}:{INSIDE_UID}:jail:{WORK}:/bin/sh\n",
    "/etc/group": f"root:x:0:\njail:x:{INSIDE_UID}:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
"""What programs look up about users and hosts; the machine's own say who runs it."""
_INSTALLED = ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages",
              "local/lib/python3*/site-packages", "local/lib/python3*/dist-packages")  # fmt: skip
"""Where Python keeps what was installed, below a prefix: a distribution of ours among it would show every domain."""
_OURS = ("shared", "services", "temper", "temper-rl", "temper_rl")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
Step = tuple[str | int, ...]


def default_root(packages: Sequence[str]) -> dict[str, str]:
    """What the default root shows, source by target: the system's programs, this Python, and named packages.

    Raises `ConfigError` for a package that is not installed or is one of ours.
    """
    shown = {target: target for target in _SYSTEM if Path(target).exists()}
    prefix = sys.base_prefix
    if not any(Path(prefix).is_relative_to(place) for place in shown):
        # At its own path: a Python that was built as a shared library looks for it there, and takes the system's,
        # of another version, or none, where it does not find it.
        shown[prefix] = prefix
    for name in packages:
        shown.update({f"{PACKAGES}/{path.name}": str(path) for path in _package(name)})
    for entry in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"):
        if Path(entry).exists():
            shown[entry] = str(Path(entry).resolve())
    return shown


def installed_below(source: str) -> list[str]:
    """Folders of installed Python packages below a prefix, relative to it; they are covered by empty ones."""
    prefix = Path(source)
    return sorted(
        {
            str(path.relative_to(prefix))
            for pattern in _INSTALLED
            for path in prefix.glob(pattern)
            if path.is_dir() and not path.is_symlink()
        }
    )


def _package(name: str) -> Iterator[Path]:
    """The top-level files and folders of a distribution and of all that it requires."""
    seen: set[str] = set()
    wanted = [name]
    while wanted:
        one = wanted.pop()
        if one in seen:
            continue
        seen.add(one)
        if one.partition(".")[0].lower() in _OURS:
            raise ConfigError(f"sandbox.python_packages names {name!r}: our own code never goes into a jail")
        try:
            distribution = importlib.metadata.distribution(one)
        except importlib.metadata.PackageNotFoundError as error:
            if one == name:
                raise ConfigError(
                    f"sandbox.python_packages names {name!r}: no such package is installed here"
                ) from error
            continue
        yield from _top_level(distribution)
        wanted += [
            match[0]
            for line in distribution.requires or ()
            if "extra ==" not in line and (match := _REQUIREMENT.match(line))
        ]


def _top_level(distribution: importlib.metadata.Distribution) -> Iterator[Path]:
    tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
    for top in sorted(tops):
        if not top.endswith((".dist-info", ".pth")):
            yield Path(str(distribution.locate_file(top)))


def build_steps(
    base: str, shown: Mapping[str, str], links: Mapping[str, str] = MappingProxyType({})
) -> list[Step]:
    """What the keeper does to make the tree at `base`, a folder on its own tmpfs. Symbolic links of the system's
    top (`/bin` -> `usr/bin`) become links, everything else a read-only bind."""
    steps: list[Step] = [("folder", base, 0o755, 0)]
    steps += [("folder", base + path, 0o755, 0) for path in _EMPTY]
    packages = {target for target in shown if target.startswith(PACKAGES)}
    for target, source in sorted(shown.items()):
        path = Path(source)
        if Path(target).is_symlink() and target in _SYSTEM:
            steps.append(("link", str(Path(target).readlink()), base + target))
        elif path.is_dir():
            steps += [("folder", base + target, 0o755, 0), ("bind_read_only", source, base + target)]
            if target not in packages:
                covered = installed_below(source)
                steps += [("bind_read_only", base + "/run", f"{base}{target}/{path}") for path in covered]
        else:
            steps += [
                ("folder", str(Path(base + target).parent), 0o755, 0),
                ("file", base + target),
                ("bind_read_only", source, base + target),
            ]
    for device in _DEVICES:
        steps += [("file", f"{base}/dev/{device}"), ("device", f"/dev/{device}", f"{base}/dev/{device}")]
    steps += [
        ("link", points_to, base + path)
        for path, points_to in {**_LINKS, **links}.items()
        if path not in shown
    ]
    steps += [("text", base + path, text) for path, text in _TEXTS.items() if path not in shown]
    return steps


class Roots:
    """Root trees by name, made once each."""

    def __init__(self, keeper: KeeperClient, declared: Mapping[str, str], packages: Sequence[str]) -> None:
        self._keeper = keeper
        self._declared = dict(declared)
        self._packages = tuple(packages)
        self._made: dict[str, str] = {}
        self._making = asyncio.Lock()

    async def path(self, name: str) -> str:
        """Where the tree of this name is, as the keeper sees it. Raises `ConfigError` for an unknown name."""
        async with self._making:
            if name not in self._made:
                self._made[name] = await self._make(name)
        return self._made[name]

    async def _make(self, name: str) -> str:
        base = f"{self._keeper.folder}/roots/{name}"
        links: dict[str, str] = {}
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
            shown, links = default_root(self._packages), {PYTHON: sys.base_prefix}
        else:
            known = ", ".join(sorted({"default", *self._declared}))
            raise ConfigError(f"root file system {name!r} is not declared; declared: {known}")
        for step in build_steps(base, shown, links):
            await self._keeper.do(step)
        return base
