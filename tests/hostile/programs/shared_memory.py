"""Shared memory without a file, far more than the limit (argument: MiB), touched page by page."""

import mmap
import sys

held = mmap.mmap(-1, int(sys.argv[1]) << 20)
for place in range(0, len(held), 4096):
    held[place] = 1
