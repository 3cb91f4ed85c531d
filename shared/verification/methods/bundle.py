"""The guest programs as one text each, which is all that a jail is given.

Invariant: a bundle holds the standard library's and the guest package's code only; nothing of the rest of Temper, no
expected value and no path of this machine.
"""

from __future__ import annotations

import functools
import importlib.util
import marshal
from pathlib import Path

from shared.verification import guest

PACKAGE = "shared.verification.guest"
_ORDER = ("kinds", "codec", "channel", "peer", "watch")
_LOADER = """\
import importlib.util, marshal, sys, types
def _bundle(magic, modules):
    for name in ("shared", "shared.verification", "shared.verification.guest"):
        made = types.ModuleType(name)
        made.__path__ = []
        sys.modules[name] = made
    same = importlib.util.MAGIC_NUMBER == magic
    for name, code, text in modules:
        made = types.ModuleType(name)
        sys.modules[name] = made
        exec(marshal.loads(code) if same else compile(text, name, "exec"), made.__dict__)
    main = made.main
    for name in [name for name in sys.modules if name == "shared" or name.startswith("shared.")]:
        del sys.modules[name]
    return main
"""
"""Compiled code travels beside its text: compiling takes some 30 ms, which is ten times what a fork takes."""


@functools.cache
def program(name: str) -> bytes:
    """The source of guest program `name`, to be run as `__main__`; it calls the program's `main()`."""
    modules = []
    for part in (*_ORDER, name):
        text = (Path(guest.__path__[0]) / f"{part}.py").read_text(encoding="utf-8")
        code = compile(text, f"<{part}>", "exec", dont_inherit=True)
        modules.append((f"{PACKAGE}.{part}", marshal.dumps(code), text))
    packed = ", ".join(map(repr, modules))
    return f"{_LOADER}\n_bundle({importlib.util.MAGIC_NUMBER!r}, [{packed}])()\n".encode()
