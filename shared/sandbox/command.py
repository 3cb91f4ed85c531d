"""One command to run in a jail.

Invariant: a path is inside the work folder: relative, with no `..` part and no NUL.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from shared.errors import ConfigError
from shared.sandbox.network.allowed import parse_place

WORK = "/work"
"""The work folder inside every jail; also HOME."""


@dataclass(frozen=True, slots=True)
class Command:
    """`argv` with its environment, its input, the files it finds in the work folder, and those read afterwards.

    Raises `ConfigError` for an empty command or a path that leaves the work folder.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: str = WORK
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    collect: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    """Places (`host:port`) that it may reach, through a proxy of ours and no other way; `sandbox.network` must allow
    them. Empty: no network at all."""
    home: str = ""
    """`host:port` of a server of ours that the door itself stands for: inside, `http://127.0.0.1:3128/…` is that server.
    The service that runs the command names it, never what runs in the jail, so no operator's list is asked."""

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise ConfigError("a command is empty: give a program and its arguments")
        for name in self.environment:
            if not name or "=" in name:
                raise ConfigError(f"environment variable {name!r}: a name is not empty and holds no '='")
        for text in (*self.argv, *self.environment, *self.environment.values(), self.cwd):
            _startable(text)
        if not PurePosixPath(self.cwd).is_absolute():
            raise ConfigError(f"folder {self.cwd!r} to start in: give an absolute path, such as {WORK}")
        if self.home:
            parse_place(self.home)
        for path in (*self.files, *self.collect):
            inside(path)


def _startable(text: str) -> None:
    if "\0" in text:
        raise ConfigError("an argument or variable holds a NUL byte: no program can be started with one")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"an argument or variable holds a character that is no text: {error.reason}"
        ) from error


def inside(path: str) -> str:
    """`path` as it is. Raises `ConfigError` where it is not a plain relative path."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\0" in path or not pure.parts:
        raise ConfigError(f"path {path!r} leaves the work folder: give a relative path without '..'")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise ConfigError(f"path {path!a} holds a character that is no text: {error.reason}") from error
    return path
