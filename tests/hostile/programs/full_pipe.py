"""Makes its pipe as large as it may, fills it, and leaves."""

import fcntl
import os

for size in (1 << 20, 1 << 19, 1 << 18):
    try:
        fcntl.fcntl(1, 1031, size)
        break
    except OSError:
        pass
os.write(1, b"x" * (1 << 17))
