"""Each of two children stays below the memory limit (argument: MiB of each); together they pass it."""

import os
import sys
import time

for _ in range(2):
    if os.fork() == 0:
        held = b"x" * (int(sys.argv[1]) << 20)
        time.sleep(60)
        os._exit(len(held) & 1)
for _ in range(2):
    os.wait()
