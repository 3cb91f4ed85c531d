"""The guest programs as one text each, which is all that a jail is given.

Invariant: a bundle holds the standard library's and the guest package's code only; nothing of the rest of Temper, no
expected value and no path of this machine.
"""

from __future__ import annotations

import base64
import functools
import importlib.util
import marshal
import zlib
from pathlib import Path
from typing import Any

from shared.verification import guest

PACKAGE = "shared.verification.guest"
_ORDER = ("kinds", "codec", "channel", "peer", "watch")
_OWN = {"solids": ("shells",)}
"""Further modules of one program."""
_LOADER = """\
import base64, importlib.util, marshal, sys, types, zlib
def _bundle(magic, compiled, texts):
    for name in ("shared", "shared.verification", "shared.verification.guest"):
        made = types.ModuleType(name)
        made.__path__ = []
        sys.modules[name] = made
    same = importlib.util.MAGIC_NUMBER == magic
    for name, code in marshal.loads(zlib.decompress(base64.b64decode(compiled if same else texts))):
        made = types.ModuleType(name)
        sys.modules[name] = made
        exec(code if same else compile(code, name, "exec"), made.__dict__)
    main = made.main
    for name in [name for name in sys.modules if name == "shared" or name.startswith("shared.")]:
        del sys.modules[name]
    return main
"""
"""Compiled code travels beside its text, for a root with another Python. Compiling there took 30 ms, reading a literal
of 300 kB 10 ms; this takes 1 ms."""


@functools.cache
def program(name: str) -> bytes:
    """The source of guest program `name`, to be run as `__main__`; it calls the program's `main()`."""
    texts = [
        (f"{PACKAGE}.{part}", (Path(guest.__path__[0]) / f"{part}.py").read_text(encoding="utf-8"))
        for part in (*_ORDER, *_OWN.get(name, ()), name)
    ]
    compiled = [(module, compile(text, f"<{module}>", "exec", dont_inherit=True)) for module, text in texts]
    call = f"_bundle({importlib.util.MAGIC_NUMBER!r}, {_packed(compiled)!r}, {_packed(texts)!r})()"
    return f"{_LOADER}\n{call}\n".encode()


def _packed(modules: Any) -> bytes:
    return base64.b64encode(zlib.compress(marshal.dumps(modules)))
