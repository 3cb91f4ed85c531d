"""What `temper up` starts: the `temper` command, tied to its parent's life.

Invariant: a child asks itself to drain (SIGTERM) when its parent is gone, however that died, so a killed
`temper up` leaves nothing running.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from temper.__main__ import main

PR_SET_PDEATHSIG = 1  # prctl(2), Linux


def tie_to_parent(parent_pid: int) -> None:
    """Asks the kernel for SIGTERM at the parent's death; leaves at once if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:
        sys.exit(1)


if __name__ == "__main__":
    tie_to_parent(int(sys.argv.pop(1)))
    main()
